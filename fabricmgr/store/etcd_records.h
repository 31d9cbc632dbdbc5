// SPDX-License-Identifier: Apache-2.0
// What the store's keys in etcd are called and what their values say (docs/fabric-manager.md has
// the table). A value is its fields in order, each as `LENGTH:TEXT,`: byte for byte, and readable.
// A field that is missing at the end has its default, so fields can be added. Pure functions.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

#include "fabricmgr/store/store.h"

namespace tidepool::fabric {

inline constexpr uint64_t kEtcdSchema = 1;

// Below the prefix; what ends in a slash is followed by numbers of 16 hexadecimal digits.
inline constexpr char kFabricKey[] = "fabric";  // FabricRecord
inline constexpr char kHeadKey[] = "head";      // HeadRecord; in every transaction
inline constexpr char kLeaderKey[] = "leader";  // who leads, with its lease
inline constexpr char kAuditBaseKey[] = "audit-base";
inline constexpr char kEventsFromKey[] = "events-from";  // older ones were dropped
inline constexpr char kPools[] = "pools/";
inline constexpr char kDevices[] = "devices/";
inline constexpr char kHosts[] = "hosts/";
inline constexpr char kRegions[] = "regions/";        // what never changes alone: name, extents
inline constexpr char kStates[] = "states/";          // of regions: StateRecord
inline constexpr char kLabels[] = "labels/";          // SUBJECT/ID: LabelsRecord
inline constexpr char kIntents[] = "intents/";        // REGION/DEVICE
inline constexpr char kRunning[] = "running/";        // operations that are not over
inline constexpr char kOperations[] = "operations/";  // those that are
inline constexpr char kEvidence[] = "evidence/";      // REGION/DEVICE
inline constexpr char kPending[] = "pending/";        // ACTOR, a zero byte, KEY: no outcome yet
inline constexpr char kKeys[] = "keys/";              // likewise: with an outcome
inline constexpr char kKeyAges[] = "key-ages/";       // CREATED/ and the rest of its name in keys/
inline constexpr char kEvents[] = "events/";          // INDEX/ORDINAL
inline constexpr char kAudit[] = "audit/";            // SEQUENCE/PIECE
inline constexpr char kStaged[] = "staged/";          // NUMBER: a piece of a large change

inline constexpr const char* kEtcdTables[] = {
    kPools,      kDevices,  kHosts,   kRegions, kStates,  kLabels, kIntents, kRunning,
    kOperations, kEvidence, kPending, kKeys,    kKeyAges, kEvents, kAudit,   kStaged};

/// The name of one thing below `table`.
std::string etcdName(std::string_view table, uint64_t id);
std::string etcdName(std::string_view table, uint64_t first, uint64_t second);
std::string etcdNameOf(const KeyRecord& key);  // without its table
/// What follows all names that begin with `table`, which ends in a slash.
std::string etcdEnd(std::string_view table);

struct FabricRecord {
  uint64_t schema = kEtcdSchema;
  Standing standing;
};
/// Where the history ends.
struct HeadRecord {
  Index index;
  uint64_t sequence = 0;  // of the audit
  Digest hash{};
  /// Pieces below staged/ that belong to it, and are yet to be carried out.
  uint64_t staged = 0;
  bool operator==(const HeadRecord&) const = default;
};
struct StateRecord {
  HostId host;
  RegionState state = RegionState::kFree;
  Epoch epoch{};
  Index modified;
};
struct LabelsRecord {
  std::string text;
  Index modified;  // of what they are of, if it was not modified otherwise since
};

/// Takes fields, or gives them.
class EtcdFields {
 public:
  EtcdFields() = default;
  explicit EtcdFields(std::string_view text) : rest_(text), reading_(true) {}

  template <typename T>
  EtcdFields& operator()(T& field) {
    if constexpr (std::same_as<T, std::string>) {
      reading_ ? read(&field) : write(field);
    } else if constexpr (std::same_as<T, Digest>) {
      std::string text(field.begin(), field.end());
      (*this)(text);
      if (reading_ && text.size() == field.size())
        std::copy(text.begin(), text.end(), field.begin());
    } else if constexpr (requires { field.value(); }) {
      uint64_t number = field.value();
      (*this)(number);
      field = T(number);
    } else {
      std::string text = reading_ ? "" : std::to_string(static_cast<uint64_t>(field));
      (*this)(text);
      if (reading_) field = static_cast<T>(numberOf(text));
    }
    return *this;
  }
  bool reading() const { return reading_; }
  bool atEnd() const { return rest_.empty(); }
  /// What was given was not of this form.
  bool bad() const { return bad_; }
  std::string take() { return std::move(text_); }

 private:
  void read(std::string* field);
  void write(std::string_view field);
  uint64_t numberOf(const std::string& text);

  std::string text_;
  std::string_view rest_;
  bool reading_ = false;
  bool bad_ = false;
};

// The fields of each kind, in order. Labels are kept apart.
void fieldsOf(EtcdFields& of, FabricRecord& record);
void fieldsOf(EtcdFields& of, HeadRecord& record);
void fieldsOf(EtcdFields& of, StateRecord& record);
void fieldsOf(EtcdFields& of, LabelsRecord& record);
void fieldsOf(EtcdFields& of, Pool& pool);
void fieldsOf(EtcdFields& of, Device& device);
void fieldsOf(EtcdFields& of, Host& host);
void fieldsOf(EtcdFields& of, Region& region);  // as in regions/
void fieldsOf(EtcdFields& of, Intent& intent);
void fieldsOf(EtcdFields& of, Operation& operation);
void fieldsOf(EtcdFields& of, ScrubEvidence& evidence);
void fieldsOf(EtcdFields& of, KeyRecord& key);
void fieldsOf(EtcdFields& of, Event& event);
void fieldsOf(EtcdFields& of, AuditRecord& record);
void fieldsOf(EtcdFields& of, AuditBase& base);

template <typename T>
std::string etcdValue(T record) {
  EtcdFields fields;
  fieldsOf(fields, record);
  return fields.take();
}

/// Errors: kCorrupt, naming the key.
template <typename T>
Result<T> fromEtcd(std::string_view key, std::string_view value) {
  T record;
  EtcdFields fields(value);
  fieldsOf(fields, record);
  if (!fields.bad()) return record;
  return fail(ErrorCode::kCorrupt,
              "the store's key %.100s has a value that is none of this version",
              std::string(key).c_str());
}

}  // namespace tidepool::fabric
