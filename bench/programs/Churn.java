// SPDX-License-Identifier: Apache-2.0
// Allocation-heavy: a hash map of some hundred thousand records that are replaced all the time. Prints
// a sum over what is left; the same on every run.
import java.util.HashMap;
import java.util.Random;

public final class Churn {
  private record Entry(String name, long[] numbers, byte[] bytes) {}

  public static void main(String[] arguments) {
    final int records = 200_000;
    Random random = new Random(12345);
    HashMap<Integer, Entry> map = new HashMap<>();
    for (int round = 0; round < 3_000_000; ++round) {
      int key = random.nextInt(records);
      byte[] bytes = new byte[256 + random.nextInt(1024)];
      bytes[round % bytes.length] = (byte) round;
      map.put(key, new Entry("record " + key + " of round " + round, new long[] {round, key}, bytes));
    }
    long sum = 0;
    for (int key = 0; key < records; ++key) {
      Entry entry = map.get(key);
      if (entry == null) continue;
      for (byte one : entry.bytes()) sum += one;
      sum = sum * 31 + entry.numbers()[0] + entry.name().length();
    }
    System.out.println(map.size() + " " + sum);
  }
}
