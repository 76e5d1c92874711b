#include "tests/fuzz/structured_mutator.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace shardlens::fuzz {
namespace {

using Json = nlohmann::ordered_json;

class Document {
 public:
  Document(Json& root, std::mt19937_64& random) : root_(root), random_(random) {}

  // One change of the document.
  void change() {
    nodes_.clear();
    keys_.clear();
    collect(root_);
    Json& node = *nodes_[below(nodes_.size())];
    switch (below(8)) {
      case 0:
        node = value();
        break;
      case 1:
        node = Json(*nodes_[below(nodes_.size())]);
        break;
      case 2:
        remove_from(node);
        break;
      case 3:
        add_to(node);
        break;
      case 4:
        rename_in(node);
        break;
      case 5:
        shuffle(node);
        break;
      case 6:
        edit_number(node);
        break;
      default:
        edit_text(node);
        break;
    }
  }

 private:
  size_t below(size_t end) { return end == 0 ? 0 : random_() % end; }

  void collect(Json& node) {
    nodes_.push_back(&node);
    if (node.is_object()) {
      for (auto& [key, member] : node.items()) {
        keys_.push_back(key);
        collect(member);
      }
    } else if (node.is_array()) {
      for (Json& element : node) {
        collect(element);
      }
    }
  }

  Json value() {
    static const std::vector<Json> values{nullptr,
                                          true,
                                          false,
                                          0,
                                          1,
                                          -1,
                                          2,
                                          65536,
                                          INT32_MAX,
                                          INT32_MIN,
                                          UINT32_MAX,
                                          int64_t{1} << 53,
                                          INT64_MAX,
                                          INT64_MIN,
                                          UINT64_MAX,
                                          0.5,
                                          -0.0,
                                          1e-320,
                                          1e308,
                                          "",
                                          "0",
                                          "-1",
                                          "../x",
                                          "\xe2\x80\xae",
                                          "\x1b[31m",
                                          std::string(300, 'x'),
                                          Json::array(),
                                          Json::object()};
    return below(4) == 0 ? Json(text()) : values[below(values.size())];
  }

  // A name that occurs in the document.
  std::string text() { return keys_.empty() ? "a" : keys_[below(keys_.size())]; }
  // A part of the document, or another value.
  Json part() { return below(2) == 0 ? value() : Json(*nodes_[below(nodes_.size())]); }

  void remove_from(Json& node) {
    if (node.is_object() && !node.empty()) {
      node.erase(std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size()))));
    } else if (node.is_array() && !node.empty()) {
      const size_t from = below(node.size()), to = from + 1 + below(node.size() - from);
      node.erase(node.begin() + static_cast<std::ptrdiff_t>(from),
                 node.begin() + static_cast<std::ptrdiff_t>(to));
    } else {
      node = value();
    }
  }

  void add_to(Json& node) {
    if (node.is_object()) {
      node[text()] = part();
    } else if (node.is_array()) {
      const Json added = below(4) == 0 || node.empty() ? part() : Json(node[below(node.size())]);
      for (size_t count = below(3) == 0 ? below(40) : 1; count > 0; --count) {
        node.insert(node.begin() + static_cast<std::ptrdiff_t>(below(node.size() + 1)), added);
      }
    } else {
      node = below(2) == 0 ? Json::array({part()}) : Json{{text(), part()}};
    }
  }

  void rename_in(Json& node) {
    if (!node.is_object() || node.empty()) {
      return;
    }
    const auto renamed = std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size())));
    Json kept = std::move(renamed.value());
    node.erase(renamed);
    node[text()] = std::move(kept);
  }

  void shuffle(Json& node) {
    if (node.is_array()) {
      std::shuffle(node.begin(), node.end(), random_);
    } else if (node.is_object()) {  // the first member becomes the last one
      if (!node.empty()) {
        const std::string key = node.begin().key();
        Json kept = std::move(node.begin().value());
        node.erase(node.begin());
        node[key] = std::move(kept);
      }
    } else {
      node = value();
    }
  }

  void edit_number(Json& node) {
    if (!node.is_number()) {
      node = value();
      return;
    }
    const auto number = node.get<double>();
    switch (below(6)) {
      case 0:
        node = number + 1;
        break;
      case 1:
        node = node.is_number_integer() ? Json(node.get<uint64_t>() + 1) : Json(-number);
        break;
      case 2:
        node = node.is_number_integer() ? Json(0 - node.get<uint64_t>()) : Json(number / 3);
        break;
      case 3:
        node = number * static_cast<double>(below(2000)) / 1000;
        break;
      case 4:
        node = node.dump();
        break;
      default:
        node = static_cast<int64_t>(below(100));
        break;
    }
  }

  void edit_text(Json& node) {
    if (!node.is_string()) {
      node = value();
      return;
    }
    auto& string = node.get_ref<std::string&>();
    const size_t at = below(string.size() + 1);
    switch (below(5)) {
      case 0:
        string.erase(at, 1 + below(8));
        break;
      case 1:
        string.insert(at, 1 + below(3), static_cast<char>(below(128)));
        break;
      case 2:
        string.insert(at, text());
        break;
      case 3:
        string += string;
        break;
      default:
        string = text();
        break;
    }
  }

  Json& root_;
  std::mt19937_64& random_;
  std::vector<Json*> nodes_;
  std::vector<std::string> keys_;
};

void change(Json& root, std::mt19937_64& random) {
  for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
    Document(root, random).change();
  }
}

std::optional<std::string> json(std::string_view input, std::mt19937_64& random) {
  Json root = Json::parse(input, nullptr, false);
  if (root.is_discarded()) {
    return std::nullopt;
  }
  change(root, random);
  return root.dump(-1, ' ', random() % 2 == 0, Json::error_handler_t::replace);
}

std::optional<std::string> lines(std::string_view input, std::mt19937_64& random) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < input.size();) {
    const size_t end = std::min(input.find('\n', begin), input.size());
    lines.emplace_back(input.substr(begin, end - begin));
    begin = end + 1;
  }
  if (lines.empty()) {
    return std::nullopt;
  }
  const size_t at = random() % lines.size(), other = random() % lines.size();
  switch (random() % 6) {
    case 0:
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), std::string(lines[other]));
      break;
    case 1:
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 2:
      std::swap(lines[at], lines[other]);
      break;
    default: {
      const std::optional<std::string> mutant = json(lines[at], random);
      if (!mutant) {
        return std::nullopt;
      }
      lines[at] = *mutant;
      break;
    }
  }
  std::string out;
  for (const std::string& line : lines) {
    out += line + '\n';
  }
  return out;
}

std::optional<std::string> message_pack(std::string_view input, std::mt19937_64& random) {
  Json root = Json::from_msgpack(input, true, false);
  if (root.is_discarded()) {
    return std::nullopt;
  }
  change(root, random);
  std::string out;
  Json::to_msgpack(root, out);
  return out;
}

}  // namespace

std::optional<std::string> mutate_structure(std::string_view input,
                                            Form form,
                                            std::mt19937_64& random) {
  switch (form) {
    case Form::kBytes:
      return std::nullopt;
    case Form::kJson:
      return json(input, random);
    case Form::kJsonLines:
      return lines(input, random);
    case Form::kJsonAfterByte: {
      const auto rest = input.empty() ? std::nullopt : json(input.substr(1), random);
      return rest ? std::optional(input.front() + *rest) : std::nullopt;
    }
    case Form::kMessagePack:
      return message_pack(input, random);
  }
  return std::nullopt;
}

}  // namespace shardlens::fuzz
