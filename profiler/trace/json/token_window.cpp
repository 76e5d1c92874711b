#include "profiler/trace/json/token_window.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Start of the string that `text` ends in, or npos. Uses simdjson's rule, because simdjson reads
// the text before it: a backslash also escapes a quote outside strings.
size_t open_string(std::string_view text) {
  size_t open = std::string_view::npos;
  for (size_t at = 0; (at = text.find('"', at)) != std::string_view::npos; ++at) {
    size_t backslashes = 0;
    while (backslashes < at && text[at - 1 - backslashes] == '\\') {
      ++backslashes;
    }
    if (backslashes % 2 == 0) {
      open = open == std::string_view::npos ? at : std::string_view::npos;
    }
  }
  return open;
}

// Position after the last object of `text` that another one follows, or npos. Unlike its bracket
// alone, "}, {" is rarely inside a string: names of kernels have "{lambda()#1}::operator()".
size_t after_last_object(std::string_view text) {
  const auto skip_blanks = [text](size_t at) {
    while (at < text.size() && text[at] == ' ') {
      ++at;
    }
    return at;
  };
  for (size_t end = text.size(); end > 0;) {
    const void* const found = ::memrchr(text.data(), '}', end);
    if (found == nullptr) {
      break;
    }
    end = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    const size_t comma = skip_blanks(end + 1);
    if (comma < text.size() && text[comma] == ',') {
      const size_t next = skip_blanks(comma + 1);
      if (next < text.size() && text[next] == '{') {
        return end + 1;
      }
    }
  }
  return std::string_view::npos;
}

// Position of the first control character within a string.
size_t control_character(std::string_view text) {
  bool within = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (within && static_cast<unsigned char>(text[i]) < 0x20) {
      return i;
    }
    if (within && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      within = !within;
    }
  }
  return text.size();
}

size_t first_invalid_utf8(std::string_view text) {
  size_t valid = 0, end = text.size();  // [0, valid) is valid, [0, end) is not
  while (valid + 1 < end) {
    const size_t middle = valid + (end - valid) / 2;
    // Do not split a character: step back to its first byte.
    size_t cut = middle;
    while (cut > valid && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) {
      --cut;
    }
    if (cut == valid) {
      break;
    }
    if (simdjson::validate_utf8(text.data() + valid, cut - valid)) {
      valid = cut;
    } else {
      end = cut;
    }
  }
  return valid;
}

}  // namespace

TokenWindow::TokenWindow(ByteSource& source, std::string name, size_t window_bytes)
    : source_(source), name_(std::move(name)), capacity_(window_bytes) {
  fill();
  if (filled_ >= kByteOrderMark.size() &&
      std::string_view(buffer_.data(), kByteOrderMark.size()) == kByteOrderMark) {
    offset_ = kByteOrderMark.size();
    filled_ -= kByteOrderMark.size();
    std::memmove(buffer_.data(), buffer_.data() + kByteOrderMark.size(), filled_);
  }
  find_tokens();
}

TokenWindow::~TokenWindow() = default;

void TokenWindow::fail(uint64_t byte, const std::string& message) const {
  throw InputError(fmt::format("{} at byte {}", name_, byte), message);
}

void TokenWindow::advance(size_t keep) {
  if (torn_) {
    fail(offset_ + filled_,
         "the JSON ends before its last quote is closed: the file is cut off, or a quote is "
         "missing");
  }
  const size_t from = keep < count_ ? tokens_[keep] : cut_;
  buffer_[cut_] = after_cut_;
  if (from == 0 && filled_ == capacity_) {
    if (capacity_ >= kMaxPieceBytes) {
      fail(offset_, fmt::format("one event or value of more than {} MiB", kMaxPieceBytes >> 20));
    }
    capacity_ = std::min(capacity_ * 2, kMaxPieceBytes);
  }
  std::memmove(buffer_.data(), buffer_.data() + from, filled_ - from);
  offset_ += from;
  filled_ -= from;
  fill();
  find_tokens();
}

void TokenWindow::fill() {
  buffer_.resize(capacity_ + kPadding);
  while (!ended_ && filled_ < capacity_) {
    const size_t got = source_.read(buffer_.data() + filled_, capacity_ - filled_);
    filled_ += got;
    ended_ = got == 0;
  }
}

// Returns a position where the window can end: after the last line break, which is never inside a
// string; in a text of one line, after an object or a bracket, which are rarely inside a string.
size_t TokenWindow::cut_after_line() const {
  // Unlike string_view::rfind, memrchr does not look at one byte at a time, which would take as
  // long as the rest of the reading if the whole text is one line.
  const auto after_last = [this](char mark) {
    const void* const at = ::memrchr(buffer_.data(), mark, filled_);
    return at == nullptr ? std::string_view::npos
                         : static_cast<size_t>(static_cast<const char*>(at) - buffer_.data()) + 1;
  };
  size_t cut = after_last('\n');
  cut = cut != std::string_view::npos ? cut : after_last_object({buffer_.data(), filled_});
  for (const char mark : {'}', ']'}) {
    cut = cut != std::string_view::npos ? cut : after_last(mark);
  }
  return std::min(cut, filled_);
}

void TokenWindow::find_tokens() {
  index(ended_ ? filled_ : cut_after_line());
  if (!closed_) {
    // The position is inside a string: end the window where that string begins. The text before it
    // may contain an error that makes a better message than an unclosed string.
    torn_ = ended_;
    const size_t open = open_string({buffer_.data(), cut_});
    index(open == std::string_view::npos ? 0 : open);
  }
  after_cut_ = buffer_[cut_];
  buffer_[cut_] = '\0';
}

void TokenWindow::index(size_t size) {
  cut_ = size;
  count_ = 0;
  closed_ = true;
  sentinel_ = static_cast<uint32_t>(size);
  tokens_ = &sentinel_;
  if (size == 0) {
    return;
  }
  constexpr size_t kDepth = 1;  // for simdjson's second stage, which is not used
  auto error = stage1_ == nullptr
                   ? simdjson::get_active_implementation()->create_dom_parser_implementation(
                         capacity_, kDepth, stage1_)
                   : stage1_->allocate(capacity_, kDepth);
  if (error == simdjson::SUCCESS) {
    error = stage1_->stage1(reinterpret_cast<const uint8_t*>(buffer_.data()), size,
                            simdjson::stage1_mode::regular);
  }
  switch (error) {
    case simdjson::SUCCESS:
      tokens_ = stage1_->structural_indexes.get();
      count_ = stage1_->n_structural_indexes;
      return;
    case simdjson::EMPTY:  // only white space
      return;
    case simdjson::UNCLOSED_STRING:
      closed_ = false;
      return;
    case simdjson::UTF8_ERROR:
    case simdjson::UNESCAPED_CHARS: {
      // In text of another encoding both checks may fail; then the message is about the encoding.
      const std::string_view text(buffer_.data(), size);
      if (!simdjson::validate_utf8(text.data(), text.size())) {
        fail(offset_ + first_invalid_utf8(text), "not UTF-8, as JSON must be");
      }
      fail(offset_ + control_character(text),
           "a control character in a string; JSON requires an escape sequence");
    }
    case simdjson::MEMALLOC:
      fail(offset_, "there is not enough memory for the parser's buffers");
    default:
      fail(offset_, fmt::format("not JSON: {}", simdjson::error_message(error)));
  }
}

}  // namespace shardlens::trace
