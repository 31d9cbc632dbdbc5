// SPDX-License-Identifier: Apache-2.0
// Batches to keys and values: what one transaction of the etcd store changes. For each key the last
// word counts, so that batches of one transaction may change the same thing. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabricmgr/store/etcd_client.h"
#include "fabricmgr/store/etcd_records.h"
#include "fabricmgr/store/store_items.h"

namespace tidepool::fabric {

class EtcdWrites {
 public:
  void put(std::string key, std::string value);
  void drop(const std::string& key);
  /// Also what was put there before.
  void dropRange(const std::string& from, const std::string& to);
  /// All of the batch but the head, which becomes what it is with the batch.
  void add(const Batch& batch, HeadRecord* head);
  void add(const StoreItem& item);
  /// After what is there already.
  void add(const EtcdWrites& later);

  bool empty() const { return keys_.empty() && ranges_.empty(); }
  /// Whether etcd takes it as one transaction, or both together.
  bool fits() const { return fitsWith(EtcdWrites()); }
  bool fitsWith(const EtcdWrites& later) const;
  /// In pieces that fit. Errors: kNoSpace when one value alone does not.
  Result<std::vector<EtcdWrites>> pieces() const;
  void into(EtcdTransaction* transaction, const std::string& prefix) const;
  std::string text() const;
  static Result<EtcdWrites> of(std::string_view text);

  /// Keys of requests that were made before this are to go. It is no part of the transaction:
  /// they may be many, and are no state.
  Nanoseconds old_keys;

 private:
  std::map<std::string, std::optional<std::string>> keys_;  // without a value: dropped
  std::vector<std::pair<std::string, std::string>> ranges_;
  size_t bytes_ = 0;
};

}  // namespace tidepool::fabric
