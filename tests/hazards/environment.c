// SPDX-License-Identifier: Apache-2.0
// setenv, putenv with far strings, clearenv, a replaced environ; locale changes; stdout that is
// closed before the end.
#include <locale.h>

#include "tests/hazards/hazard.h"

extern char** environ;

int main(void) {
  char* data = farBlock(4 * MIB, 1);
  char name[32];
  for (int i = 0; i < 2000; ++i) {
    snprintf(name, sizeof name, "HAZARD_%d", i);
    EXPECT(setenv(name, "value", 1) == 0);
  }
  char* far = farBlock(kPage, 2);
  snprintf(far, kPage, "FAR_STRING=%0999d", 7);
  EXPECT(putenv(far) == 0);
  crowd();
  printf("%zu %s\n", strlen(getenv("FAR_STRING")), getenv("HAZARD_1999"));
  for (int i = 0; i < 20; ++i) {
    printf("%s %d\n", setlocale(LC_ALL, i % 2 ? "C" : "C.UTF-8") != NULL ? "set" : "not set", i);
    crowd();
  }
  EXPECT(clearenv() == 0 && getenv("HAZARD_5") == NULL);
  char* mine[] = {(char*)"ONE=1", NULL};
  environ = mine;
  printf("%s\n", getenv("ONE"));
  crowd();
  tell("data", data, 4 * MIB);
  done("environment");
  fclose(stdout);
  free(data);
  return failures();
}
