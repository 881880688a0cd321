#include "base/formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json/basic_parser_impl.hpp>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/text/json_writer.h"
#include "base/units.h"

namespace tidepool {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the length word and the tensors are little-endian");

constexpr std::string_view kMetadataKey = "__metadata__";

struct ElementType {
  std::string_view name;
  uint64_t bytes;
};
constexpr auto kElementTypes = std::to_array<ElementType>({{"BOOL", 1},
                                                           {"U8", 1},
                                                           {"I8", 1},
                                                           {"F8_E5M2", 1},
                                                           {"F8_E4M3", 1},
                                                           {"U16", 2},
                                                           {"I16", 2},
                                                           {"F16", 2},
                                                           {"BF16", 2},
                                                           {"U32", 4},
                                                           {"I32", 4},
                                                           {"F32", 4},
                                                           {"U64", 8},
                                                           {"I64", 8},
                                                           {"F64", 8}});

Status Bad(std::string what) {
  return Status(ErrorId::kSafetensorsBad, std::move(what));
}

// Bytes implied by dtype and shape; false on overflow or an unknown dtype.
bool ExpectedBytes(const SafetensorsEntry& entry, uint64_t* bytes) {
  *bytes = SafetensorsElementBytes(entry.dtype);
  if (*bytes == 0) return false;
  // A zero dimension makes the product zero, whatever the other dimensions are.
  if (std::find(entry.shape.begin(), entry.shape.end(), 0u) != entry.shape.end()) {
    *bytes = 0;
    return true;
  }
  for (const uint64_t dim : entry.shape) {
    if (__builtin_mul_overflow(*bytes, dim, bytes)) return false;
  }
  return *bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

// Receives the parser's events and accepts exactly the form of a safetensors header: depth 1 holds
// tensor names and __metadata__, depth 2 their fields, and arrays of unsigned numbers only in shape
// and data_offsets. Nothing beyond the limits is stored.
class HeaderHandler {
 public:
  using error_code = boost::system::error_code;
  static constexpr std::size_t max_object_size = kSafetensorsTensorsMax + 1;
  static constexpr std::size_t max_array_size = kSafetensorsDimsMax;
  static constexpr std::size_t max_key_size = kSafetensorsTextMax;
  static constexpr std::size_t max_string_size = kSafetensorsTextMax;

  SafetensorsHeader header;
  std::string why;  // set if a handler returned false

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code& ec) {
    ++depth_;
    if (depth_ == 1) return true;
    if (depth_ != 2 || in_array_) return Fail("an object stands where none may", ec);
    fields_seen_ = 0;
    metadata_seen_.clear();
    in_metadata_ = key_ == kMetadataKey;
    if (!in_metadata_) header.tensors.push_back({.name = key_, .dtype = "", .shape = {}});
    return true;
  }
  bool on_object_end(std::size_t, error_code& ec) {
    --depth_;
    if (depth_ == 1 && !in_metadata_ && fields_seen_ != kAllFields) {
      return Fail("tensor '" + header.tensors.back().name + "' lacks dtype, shape or data_offsets",
                  ec);
    }
    return true;
  }
  bool on_array_begin(error_code& ec) {
    if (depth_ != 2 || in_array_ || in_metadata_ || (field_ != kShape && field_ != kOffsets))
      return Fail("an array stands where none may", ec);
    in_array_ = true;
    numbers_.clear();
    return true;
  }
  bool on_array_end(std::size_t, error_code& ec) {
    in_array_ = false;
    SafetensorsEntry& entry = header.tensors.back();
    if (field_ == kShape) {
      entry.shape = numbers_;
      return true;
    }

    if (numbers_.size() != 2)
      return Fail("data_offsets of tensor '" + entry.name + "' is not a pair", ec);
    entry.begin = numbers_[0];
    entry.end = numbers_[1];
    return true;
  }
  bool on_key_part(std::string_view part, std::size_t, error_code&) {
    key_part_ += part;
    return true;
  }
  bool on_key(std::string_view part, std::size_t, error_code& ec) {
    key_ = key_part_ + std::string(part);
    key_part_.clear();

    if (depth_ == 1)
      return names_.insert(key_).second || Fail("the name '" + key_ + "' stands twice", ec);
    if (in_metadata_)
      return metadata_seen_.insert(key_).second ||
             Fail("the metadata key '" + key_ + "' stands twice", ec);

    field_ = key_ == "dtype"          ? kDtype
             : key_ == "shape"        ? kShape
             : key_ == "data_offsets" ? kOffsets
                                      : 0;
    if (field_ == 0)
      return Fail("tensor '" + header.tensors.back().name + "' has an unknown field '" + key_ + "'",
                  ec);

    if ((fields_seen_ & field_) != 0) return Fail("the field '" + key_ + "' stands twice", ec);
    fields_seen_ |= field_;
    return true;
  }
  bool on_string_part(std::string_view part, std::size_t, error_code&) {
    text_part_ += part;
    return true;
  }
  bool on_string(std::string_view part, std::size_t, error_code& ec) {
    std::string text = text_part_ + std::string(part);
    text_part_.clear();
    if (depth_ != 2 || in_array_) return Fail("a text stands where none may", ec);
    if (in_metadata_) {
      header.metadata.emplace_back(key_, std::move(text));
      return true;
    }
    if (field_ != kDtype) return Fail("the field '" + key_ + "' is a text", ec);
    header.tensors.back().dtype = std::move(text);
    return true;
  }
  bool on_number_part(std::string_view, error_code&) { return true; }
  bool on_int64(int64_t value, std::string_view, error_code& ec) {
    return value >= 0 ? on_uint64(static_cast<uint64_t>(value), {}, ec)
                      : Fail("a negative number", ec);
  }
  bool on_uint64(uint64_t value, std::string_view, error_code& ec) {
    if (!in_array_) return Fail("a number stands where none may", ec);
    numbers_.push_back(value);
    return true;
  }
  bool on_double(double, std::string_view, error_code& ec) {
    return Fail("a number is not a whole one", ec);
  }
  bool on_bool(bool, error_code& ec) { return Fail("a truth value stands where none may", ec); }
  bool on_null(error_code& ec) { return Fail("null stands where it may not", ec); }
  bool on_comment_part(std::string_view, error_code&) { return true; }
  bool on_comment(std::string_view, error_code& ec) { return Fail("a comment", ec); }

 private:
  static constexpr int kDtype = 1, kShape = 2, kOffsets = 4, kAllFields = 7;

  bool Fail(std::string text, error_code& ec) {
    why = std::move(text);
    ec = boost::json::error::syntax;
    return false;
  }

  int depth_ = 0, field_ = 0, fields_seen_ = 0;
  bool in_array_ = false, in_metadata_ = false;
  std::string key_, key_part_, text_part_;
  std::vector<uint64_t> numbers_;
  std::unordered_set<std::string> names_, metadata_seen_;
};

// Invariants 2 and 3 of the header; sorts the tensors by begin.
Status CheckLayout(SafetensorsHeader* header, uint64_t data_bytes) {
  std::stable_sort(header->tensors.begin(), header->tensors.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });

  uint64_t at = 0;
  for (const SafetensorsEntry& entry : header->tensors) {
    const std::string who = "tensor '" + entry.name + "'";
    uint64_t expected = 0;
    if (SafetensorsElementBytes(entry.dtype) == 0)
      return Bad(who + " has the unknown dtype '" + entry.dtype + "'");
    if (!ExpectedBytes(entry, &expected)) return Bad("the shape of " + who + " is too large");

    if (entry.end < entry.begin || entry.end - entry.begin != expected) {
      return Bad("data_offsets of " + who + " do not span the " + std::to_string(expected) +
                 " bytes of its shape");
    }
    if (entry.begin != at) {
      return Bad(who + " begins at byte " + std::to_string(entry.begin) +
                 " of the data, the one before it ends at " + std::to_string(at));
    }
    at = entry.end;
  }

  if (at != data_bytes)
    return Bad("the tensors span " + std::to_string(at) + " bytes, the file holds " +
               std::to_string(data_bytes));
  return {};
}

}  // namespace

uint64_t SafetensorsElementBytes(std::string_view dtype) {
  for (const ElementType& type : kElementTypes) {
    if (type.name == dtype) return type.bytes;
  }
  return 0;
}

Result<uint64_t> SafetensorsHeaderLength(std::span<const std::byte, kSafetensorsPrefixBytes> prefix,
                                         uint64_t file_bytes) {
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);

  if (length > kSafetensorsHeaderMax) {
    return Bad("the header claims " + std::to_string(length) + " bytes, " +
               std::to_string(kSafetensorsHeaderMax) + " are the limit");
  }
  if (length < 2 || file_bytes < kSafetensorsPrefixBytes ||
      length > file_bytes - kSafetensorsPrefixBytes) {
    return Bad("the header claims " + std::to_string(length) + " bytes, the file has " +
               std::to_string(file_bytes) + " in all");
  }

  return length;
}

Result<SafetensorsHeader> DecodeSafetensorsHeader(std::string_view json, uint64_t data_bytes) {
  if (json.size() > kSafetensorsHeaderMax)
    return Bad("the header has " + std::to_string(json.size()) + " bytes");
  if (json.empty() || json.front() != '{') return Bad("the header does not begin with '{'");
  while (json.back() == ' ') json.remove_suffix(1);

  boost::json::parse_options options;
  options.max_depth = 4;
  boost::json::basic_parser<HeaderHandler> parser(options);
  boost::system::error_code error;
  const size_t used = parser.write_some(false, json.data(), json.size(), error);
  HeaderHandler& handler = parser.handler();

  if (error || used != json.size() || !parser.done()) {
    const std::string why = !handler.why.empty() ? handler.why
                            : error              ? error.message()
                                    : "the JSON text does not end where the header ends";
    return Bad("the header is not one of safetensors, near its byte " + std::to_string(used) +
               ": " + why);
  }

  if (handler.header.tensors.size() > kSafetensorsTensorsMax)
    return Bad("the header names more than 100,000 tensors");
  TP_RETURN_IF_ERROR(CheckLayout(&handler.header, data_bytes));
  return std::move(handler.header);
}

Result<SafetensorsHeader> DecodeSafetensors(std::span<const std::byte> file, uint64_t* data_begin) {
  if (file.size() < kSafetensorsPrefixBytes)
    return Bad("a file of " + std::to_string(file.size()) + " bytes holds no header");
  TP_ASSIGN_OR_RETURN(const uint64_t length,
                      SafetensorsHeaderLength(file.first<kSafetensorsPrefixBytes>(), file.size()));
  *data_begin = kSafetensorsPrefixBytes + length;
  const auto* text = reinterpret_cast<const char*>(file.data() + kSafetensorsPrefixBytes);
  return DecodeSafetensorsHeader(std::string_view(text, length), file.size() - *data_begin);
}

Result<std::string> EncodeSafetensorsHeader(SafetensorsHeader* header) {
  if (header->tensors.size() > kSafetensorsTensorsMax) return Bad("more than 100,000 tensors");

  JsonWriter json;
  json.BeginObject();
  if (!header->metadata.empty()) {
    json.Key(kMetadataKey).BeginObject();
    for (const auto& [key, value] : header->metadata) json.Field(key, value);
    json.EndObject();
  }

  uint64_t at = 0;
  for (SafetensorsEntry& entry : header->tensors) {
    uint64_t bytes = 0;
    if (!ExpectedBytes(entry, &bytes))
      return Bad("tensor '" + entry.name + "' has an unknown dtype or too large a shape");

    entry.begin = at;
    if (__builtin_add_overflow(at, bytes, &at)) return Bad("the tensors are too large");
    entry.end = at;

    json.Key(entry.name).BeginObject().Field("dtype", entry.dtype).Key("shape").BeginArray();
    for (const uint64_t dim : entry.shape) json.Uint(dim);
    json.EndArray()
        .Key("data_offsets")
        .BeginArray()
        .Uint(entry.begin)
        .Uint(entry.end)
        .EndArray()
        .EndObject();
  }

  json.EndObject();
  std::string text = json.Take();
  text.resize(RoundUp(kSafetensorsPrefixBytes + text.size(), 8) - kSafetensorsPrefixBytes, ' ');
  // Decoding the result with our own reader ensures that others accept it: it finds duplicate
  // names, and texts or headers that are too long.
  TP_ASSIGN_OR_RETURN([[maybe_unused]] const SafetensorsHeader check,
                      DecodeSafetensorsHeader(text, at));

  uint64_t length = text.size();
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix + text;
}

}  // namespace tidepool
