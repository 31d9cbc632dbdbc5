# SPDX-License-Identifier: Apache-2.0
# Many small strings in a hash, sorted and joined.
use strict;
use warnings;
my %table;
$table{$_ % 5003} .= $_ for 1 .. 300000;
print length(join('', map { $table{$_} } sort keys %table)), "\n";
