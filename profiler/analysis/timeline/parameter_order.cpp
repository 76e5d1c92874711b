#include "profiler/analysis/timeline/parameter_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shardlens::analysis {
namespace {

using trace::ShardedParameter;
using Sizes = std::multiset<int64_t>;

constexpr size_t kMostSums = 4096;         // of the parameters of a piece
constexpr int64_t kMostSteps = 1'000'000;  // of a search

struct OrderedPiece {  // parameters that are moved one after the other
  std::string unit;
  std::vector<const ShardedParameter*> parameters;
  uint32_t alike = 0;  // number of its class: those with parameters of the same sizes
  int64_t elements = 0;
  bool block = false;
};

std::vector<OrderedPiece> pieces_of(std::span<const ShardedParameter> parameters) {
  std::vector<OrderedPiece> out;
  std::map<std::string_view, size_t> of_unit;
  for (const ShardedParameter& each : parameters) {
    const auto known = of_unit.find(each.unit);
    if (each.unit.empty() || known == of_unit.end()) {
      of_unit.emplace(each.unit, out.size());
      out.push_back({each.unit, {}, 0, 0, !each.unit.empty()});
    }
    OrderedPiece& piece = each.unit.empty() ? out.back() : out[of_unit.at(each.unit)];
    piece.parameters.push_back(&each);
    piece.elements += each.elements;
  }
  std::map<Sizes, uint32_t> classes;
  for (OrderedPiece& piece : out) {
    Sizes sizes;
    for (const ShardedParameter* each : piece.parameters) {
      sizes.insert(each->elements);
    }
    // A parameter of no block may be left out where another of its size is not.
    piece.alike = piece.block
                      ? classes.emplace(sizes, static_cast<uint32_t>(classes.size())).first->second
                      : static_cast<uint32_t>(parameters.size() + out.size());
  }
  return out;
}

// Sizes that a collective can have that moves several of these parameters; empty: too many.
std::set<int64_t> sums_of(const Sizes& sizes) {
  std::set<int64_t> sums{0};
  for (const int64_t size : sizes) {
    std::vector<int64_t> more;
    for (const int64_t sum : sums) {
      more.push_back(sum + size);
    }
    sums.insert(more.begin(), more.end());
    if (sums.size() > kMostSums) {
      return {};
    }
  }
  return sums;
}

// Takes from `left` the parameters with this sum. False: none have it.
bool take_sum(int64_t sum, Sizes& left) {
  if (sum == 0) {
    return true;
  }
  if (const auto single = left.find(sum); single != left.end()) {
    left.erase(single);
    return true;
  }
  if (left.empty() || sum < *left.begin() || !sums_of(left).contains(sum)) {
    return false;
  }
  // Some of them have this sum, so the search for these ends.
  const std::vector<int64_t> distinct(left.rbegin(), left.rend());
  for (const int64_t size : distinct) {
    Sizes rest = left;
    rest.erase(rest.find(size));
    if (size < sum && take_sum(sum - size, rest)) {
      left = std::move(rest);
      return true;
    }
  }
  return false;
}

// The innermost module around all parameters of a piece that a collective of this size can move.
std::string module_of(const OrderedPiece& piece, int64_t elements) {
  std::vector<std::string_view> names;
  for (const ShardedParameter* each : piece.parameters) {
    if (each->elements == elements) {
      names.push_back(each->name);
    }
  }
  if (names.empty()) {
    return piece.unit;  // a bucket
  }
  const auto parent = [](std::string_view name) {
    const size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
  };
  std::string_view common = parent(names.front());
  for (const std::string_view name : names) {
    while (!common.empty() && !name.starts_with(fmt::format("{}.", common))) {
      common = parent(common);
    }
  }
  return std::string(common);
}

// A collective takes parameters of the pieces [first, last].
struct TakenPieces {
  uint32_t first = 0, last = 0;
  friend bool operator==(const TakenPieces&, const TakenPieces&) = default;
};

// Divides the sequence of collectives among the pieces, each of which gets the next ones or none.
// `all_alike`: pieces of a class get the same sizes; otherwise some of them may get none.
class OrderSearch {
 public:
  OrderSearch(std::span<const int64_t> elements,
              const std::vector<OrderedPiece>& pieces,
              bool all_alike)
      : elements_(elements),
        pieces_(pieces),
        all_alike_(all_alike),
        now_(elements.size()),
        from_(elements.size() + 1),
        of_pieces_(pieces.size() + 1) {
    std::partial_sum(elements.rbegin(), elements.rend(), from_.rbegin() + 1);
    for (size_t i = pieces.size(); i > 0; --i) {
      of_pieces_[i - 1] = of_pieces_[i] + pieces[i - 1].elements;
    }
  }

  // The division in which each piece gets as many as it can; empty if there is none.
  std::vector<TakenPieces> run() {
    visit(0, 0);
    return steps_ <= kMostSteps ? found_ : std::vector<TakenPieces>();
  }
  // Whether another division gives the collective to other units.
  [[nodiscard]] bool is_ambiguous(size_t i) const { return ambiguous_.contains(i); }

 private:
  struct Pattern {  // what the pieces of a class get
    Sizes sizes;
    size_t length = 0;
  };
  using Key = std::pair<std::pair<size_t, size_t>, std::vector<std::pair<uint32_t, size_t>>>;

  // True: a division of what follows exists.
  bool visit(size_t at, size_t piece) {
    if (++steps_ > kMostSteps || done_) {
      return false;
    }
    if (at == elements_.size()) {
      const bool whole = !lacks_alike(piece);
      if (whole) {
        finish();
      }
      return whole;
    }
    if (from_[at] > of_pieces_[piece]) {
      return false;  // more than all that is left
    }
    const Key key{{at, piece}, begins_};
    if (fails_.contains(key)) {
      return false;
    }
    bool found = take_alike(at, piece);
    found = take_several(at, piece) || found;
    if (!pieces_[piece].block || !all_alike_) {
      found = visit(at, piece + 1) || found;  // its parameters were kept, or are not used
    }
    if (!found) {
      fails_.insert(key);
    }
    return found;
  }

  // Whether a block from `piece` on would have to get what those alike got.
  [[nodiscard]] bool lacks_alike(size_t piece) const {
    return all_alike_ && std::any_of(pieces_.begin() + static_cast<std::ptrdiff_t>(piece),
                                     pieces_.end(), [&](const OrderedPiece& each) {
                                       const auto known = patterns_.find(each.alike);
                                       return each.block && known != patterns_.end() &&
                                              known->second.length > 0;
                                     });
  }

  bool take_alike(size_t at, size_t piece) {
    const uint32_t alike = pieces_[piece].alike;
    const bool block = pieces_[piece].block;
    if (const auto known = patterns_.find(alike); block && known != patterns_.end()) {
      const size_t length = known->second.length;
      return at + length <= elements_.size() &&
             Sizes(elements_.begin() + static_cast<std::ptrdiff_t>(at),
                   elements_.begin() + static_cast<std::ptrdiff_t>(at + length)) ==
                 known->second.sizes &&
             take(at, piece, length);
    }
    Sizes left;
    for (const ShardedParameter* each : pieces_[piece].parameters) {
      left.insert(each->elements);
    }
    size_t most = 0;
    while (at + most < elements_.size() && take_sum(elements_[at + most], left)) {
      ++most;
    }
    bool found = false;
    const size_t least = block && all_alike_ ? 0 : 1;
    for (size_t length = most + 1; length-- > least;) {
      if (block) {
        patterns_[alike] = {Sizes(elements_.begin() + static_cast<std::ptrdiff_t>(at),
                                  elements_.begin() + static_cast<std::ptrdiff_t>(at + length)),
                            length};
        begins_.emplace_back(alike, at * (elements_.size() + 1) + length);
      }
      found = take(at, piece, length) || found;
      if (block) {
        patterns_.erase(alike);
        begins_.pop_back();
      }
    }
    return found;
  }

  bool take(size_t at, size_t piece, size_t length) {
    for (size_t i = at; i < at + length; ++i) {
      now_[i] = {static_cast<uint32_t>(piece), static_cast<uint32_t>(piece)};
    }
    return visit(at + length, piece + 1);
  }

  // A bucket of all parameters of several pieces.
  bool take_several(size_t at, size_t piece) {
    int64_t sum = pieces_[piece].elements;
    for (size_t last = piece + 1; last < pieces_.size(); ++last) {
      sum += pieces_[last].elements;
      if (sum == elements_[at]) {
        now_[at] = {static_cast<uint32_t>(piece), static_cast<uint32_t>(last)};
        return visit(at + 1, last + 1);
      }
      if (sum > elements_[at]) {
        break;
      }
    }
    return false;
  }

  void finish() {
    if (found_.empty()) {
      found_ = now_;
      return;
    }
    const auto unit = [&](uint32_t piece) -> const std::string& { return pieces_[piece].unit; };
    for (size_t i = 0; i < now_.size(); ++i) {
      if (unit(found_[i].first) != unit(now_[i].first) ||
          unit(found_[i].last) != unit(now_[i].last)) {
        ambiguous_.insert(i);
      }
    }
    // More of them are seldom of use, and may be very many.
    constexpr int kMostDivisions = 64;
    done_ = ++others_ >= kMostDivisions;
  }

  std::span<const int64_t> elements_;
  const std::vector<OrderedPiece>& pieces_;
  bool all_alike_;
  std::vector<TakenPieces> now_, found_;
  std::vector<int64_t> from_, of_pieces_;  // sums of all elements from a position on
  std::set<size_t> ambiguous_;
  std::map<uint32_t, Pattern> patterns_;             // by class
  std::vector<std::pair<uint32_t, size_t>> begins_;  // of the patterns: where each was found
  std::set<Key> fails_;
  int64_t steps_ = 0;
  int others_ = 0;
  bool done_ = false;
};

// In the order of the parameters, where units are cut by buckets of another size.
std::vector<TakenPieces> tiled(std::span<const int64_t> elements,
                               const std::vector<OrderedPiece>& pieces,
                               bool backward) {
  std::vector<std::pair<int64_t, uint32_t>> parts;  // elements, piece
  for (uint32_t piece = 0; piece < pieces.size(); ++piece) {
    const size_t begin = parts.size();
    for (const ShardedParameter* each : pieces[piece].parameters) {
      parts.emplace_back(each->elements, piece);
    }
    if (backward) {
      std::reverse(parts.begin() + static_cast<std::ptrdiff_t>(begin), parts.end());
    }
  }
  std::vector<TakenPieces> out;
  size_t next = 0;
  for (const int64_t each : elements) {
    const size_t first = next;
    int64_t sum = 0;
    while (next < parts.size() && sum < each) {
      sum += parts[next++].first;
    }
    if (sum != each) {
      return {};
    }
    out.push_back({parts[first].second, parts[next - 1].second});
  }
  return next == parts.size() ? out : std::vector<TakenPieces>();
}

std::string name_of_several(const OrderedPiece& first, const OrderedPiece& last) {
  const auto words = [](const OrderedPiece& piece) {
    return piece.block ? piece.unit : piece.parameters.front()->name;
  };
  return fmt::format("{} … {}", words(first), words(last));
}

// The parameters of a piece that no collective has moved yet, in the order in which they are moved.
using LeftParameters = std::vector<const ShardedParameter*>;

// Takes the parameters that a collective of this size moves: one; some that follow each other; or
// any that have this sum. Empty: none have it.
LeftParameters take_parameters(int64_t elements, LeftParameters& left) {
  const auto take = [&left](size_t begin, size_t end) {
    const auto from = left.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto until = left.begin() + static_cast<std::ptrdiff_t>(end);
    LeftParameters taken(from, until);
    left.erase(from, until);
    return taken;
  };
  const auto one = std::ranges::find(left, elements, &ShardedParameter::elements);
  if (one != left.end()) {
    const auto at = static_cast<size_t>(one - left.begin());
    return take(at, at + 1);
  }
  for (size_t begin = 0; begin < left.size(); ++begin) {
    int64_t sum = 0;
    for (size_t end = begin; end < left.size() && sum < elements;) {
      sum += left[end++]->elements;
      if (sum == elements) {
        return take(begin, end);
      }
    }
  }
  Sizes sizes;
  for (const ShardedParameter* each : left) {
    sizes.insert(each->elements);
  }
  LeftParameters taken;
  if (Sizes rest = sizes; take_sum(elements, rest)) {
    std::erase_if(left, [&](const ShardedParameter* each) {
      if (sizes.count(each->elements) == rest.count(each->elements)) {
        return false;
      }
      sizes.erase(sizes.find(each->elements));
      taken.push_back(each);
      return true;
    });
  }
  return taken;
}

// See MovedParameters::parameters.
class ParameterNames {
 public:
  ParameterNames(std::span<const ShardedParameter> all,
                 const std::vector<OrderedPiece>& pieces,
                 bool backward)
      : all_(all) {
    for (const OrderedPiece& piece : pieces) {
      left_.push_back(piece.parameters);
      if (backward) {
        std::ranges::reverse(left_.back());
      }
    }
  }

  std::vector<uint32_t> take(const TakenPieces& from, int64_t elements) {
    LeftParameters taken;
    if (from.first == from.last) {
      taken = take_parameters(elements, left_[from.first]);
    } else {
      int64_t sum = 0;
      for (uint32_t piece = from.first; piece <= from.last; ++piece) {
        for (const ShardedParameter* each : left_[piece]) {
          sum += each->elements;
          taken.push_back(each);
        }
      }
      if (sum != elements) {
        return {};  // only parts of the first or the last one
      }
      std::fill(left_.begin() + from.first, left_.begin() + from.last + 1, LeftParameters());
    }
    std::vector<uint32_t> out;
    for (const ShardedParameter* each : taken) {
      out.push_back(static_cast<uint32_t>(each - all_.data()));
    }
    std::ranges::sort(out);
    return out;
  }

 private:
  std::span<const ShardedParameter> all_;
  std::vector<LeftParameters> left_;  // by piece
};

// `pieces`: in the order of the modules.
std::vector<MovedParameters> moved_in_order(std::span<const ShardedParameter> parameters,
                                            std::span<const int64_t> elements,
                                            std::vector<OrderedPiece> pieces,
                                            bool backward) {
  if (backward) {
    std::ranges::reverse(pieces);
  }
  std::optional<OrderSearch> search;
  std::vector<TakenPieces> taken;
  for (const bool all_alike : {true, false}) {
    if (taken.empty()) {
      search.emplace(elements, pieces, all_alike);
      taken = search->run();
    }
  }
  if (taken.empty()) {
    taken = tiled(elements, pieces, backward);
  }
  ParameterNames names(parameters, pieces, backward);
  std::vector<MovedParameters> out;
  for (size_t i = 0; i < taken.size(); ++i) {
    const OrderedPiece &first = pieces[taken[i].first], &last = pieces[taken[i].last];
    MovedParameters& each = out.emplace_back();
    each.ambiguous = search->is_ambiguous(i);
    each.parameters = names.take(taken[i], elements[i]);
    if (first.unit == last.unit) {
      each.unit = first.unit;
      each.module = taken[i].first == taken[i].last ? module_of(first, elements[i]) : first.unit;
    } else {
      each.unit = backward ? name_of_several(last, first) : name_of_several(first, last);
      each.module = each.unit;
    }
  }
  return out;
}

// Some models register the norm after the blocks before them. The pieces with such ones after the
// last block; empty: there are none.
std::vector<OrderedPiece> possibly_after_blocks(const std::vector<OrderedPiece>& pieces) {
  std::set<int64_t> in_blocks;
  size_t first = pieces.size(), last = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].block) {
      first = std::min(first, i);
      last = i;
      for (const ShardedParameter* each : pieces[i].parameters) {
        in_blocks.insert(each->elements);
      }
    }
  }
  std::vector<OrderedPiece> before, after;
  for (size_t i = 0; i <= last && i < pieces.size(); ++i) {
    const bool moves = i < first && in_blocks.contains(pieces[i].elements);
    (moves ? after : before).push_back(pieces[i]);
  }
  if (after.empty()) {
    return {};
  }
  before.insert(before.end(), after.begin(), after.end());
  before.insert(before.end(), pieces.begin() + static_cast<std::ptrdiff_t>(last) + 1, pieces.end());
  return before;
}

}  // namespace

std::vector<MovedParameters> moved_parameters(std::span<const int64_t> elements,
                                              std::span<const trace::ShardedParameter> parameters,
                                              bool backward) {
  const std::vector<OrderedPiece> pieces = pieces_of(parameters);
  std::vector<MovedParameters> out = moved_in_order(parameters, elements, pieces, backward);
  const std::vector<OrderedPiece> moved = possibly_after_blocks(pieces);
  if (moved.empty()) {
    return out;
  }
  const std::vector<MovedParameters> other = moved_in_order(parameters, elements, moved, backward);
  for (size_t i = 0; i < std::min(out.size(), other.size()); ++i) {
    out[i].ambiguous = out[i].ambiguous || other[i].ambiguous || out[i].unit != other[i].unit;
  }
  return out.empty() ? other : out;
}

}  // namespace shardlens::analysis
