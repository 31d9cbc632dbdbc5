-- SPDX-License-Identifier: Apache-2.0
-- A database of some 500 MB in memory: orders and their customers, two indexes, and questions that read
-- it in order, by index, at random, joined, grouped, and after changes.
PRAGMA cache_size = -1000000;
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, region INTEGER);
CREATE TABLE sale (id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
  INSERT INTO customer SELECT i, printf('customer %08d of the list', i * 7919 % 200003), i % 37 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200000)
  INSERT INTO sale SELECT i, i * 48271 % 200000 + 1, i * 16807 % 100003,
    printf('%08x-%08x ', i * 48271 % 2147483647, i * 69621 % 2147483647) ||
    printf('a remark of some length, as clerks write it; it goes on and on, for %.*c', 240, 'x') FROM n;
CREATE INDEX sale_customer ON sale (customer);
CREATE INDEX sale_amount ON sale (amount);
SELECT count(*), sum(amount), max(note) FROM sale;
SELECT region, count(*), sum(amount) FROM customer JOIN sale ON customer.id = sale.customer
  WHERE customer.id % 20 = 3 GROUP BY region ORDER BY region;
SELECT sum(length(note)), min(note) FROM sale WHERE amount BETWEEN 500 AND 1500;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
  SELECT sum(sale.amount), max(sale.note) FROM n JOIN sale ON sale.id = n.i * 28411 % 1200000 + 1;
UPDATE sale SET amount = amount + 1 WHERE customer BETWEEN 1000 AND 5000;
DELETE FROM sale WHERE amount % 97 = 5;
SELECT count(*), sum(amount) FROM sale;
