#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace shardlens::trace {

// A vector of trivially copyable values that grows by realloc. For large blocks Linux then remaps
// pages instead of copying them, so a table of gigabytes is never in memory twice, and reserved
// capacity that is not yet used takes no memory.
//
// Layout     contiguous; iterators are pointers, invalid after the next growth.
// Errors     std::bad_alloc; at() throws std::out_of_range.
template <typename T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using size_type = size_t;
  using difference_type = ptrdiff_t;
  using reference = T&;
  using const_reference = const T&;
  using pointer = T*;
  using const_pointer = const T*;
  using iterator = T*;
  using const_iterator = const T*;

  GrowingArray() = default;
  GrowingArray(std::initializer_list<T> values) { assign(values.begin(), values.size()); }
  GrowingArray(const GrowingArray& other) { assign(other.data_, other.size_); }
  GrowingArray(GrowingArray&& other) noexcept { swap(other); }
  GrowingArray& operator=(const GrowingArray& other) {
    if (this != &other) {
      assign(other.data_, other.size_);
    }
    return *this;
  }
  GrowingArray& operator=(GrowingArray&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GrowingArray() { std::free(data_); }  // NOLINT: realloc'ed

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] size_t capacity() const { return capacity_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  [[nodiscard]] const T* begin() const { return data_; }
  [[nodiscard]] const T* end() const { return data_ + size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& at(size_t i) { return data_[checked(i)]; }
  [[nodiscard]] const T& at(size_t i) const { return data_[checked(i)]; }
  T& front() { return data_[0]; }
  [[nodiscard]] const T& front() const { return data_[0]; }
  T& back() { return data_[size_ - 1]; }
  [[nodiscard]] const T& back() const { return data_[size_ - 1]; }

  void push_back(const T& value) {
    if (size_ == capacity_) {
      const T copy = value;  // `value` may be in this array
      grow(size_ + 1);
      data_[size_++] = copy;
    } else {
      data_[size_++] = value;
    }
  }
  void reserve(size_t capacity) {
    if (capacity > capacity_) {
      reallocate(capacity);
    }
  }
  void resize(size_t size) {
    if (size > capacity_) {
      grow(size);
    }
    std::fill(data_ + std::min(size, size_), data_ + size, T{});
    size_ = size;
  }
  void clear() { size_ = 0; }
  T* erase(T* first, T* last) {
    size_ = static_cast<size_t>(std::move(last, end(), first) - data_);
    return first;
  }
  void swap(GrowingArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  friend bool operator==(const GrowingArray& a, const GrowingArray& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr size_t kFirstCapacity = 16;

  [[nodiscard]] size_t checked(size_t i) const {
    if (i >= size_) {
      throw std::out_of_range("GrowingArray::at");
    }
    return i;
  }
  void grow(size_t least) { reallocate(std::max({least, capacity_ * 2, kFirstCapacity})); }
  void reallocate(size_t capacity) {
    void* data = capacity > static_cast<size_t>(-1) / 2 / sizeof(T)
                     ? nullptr
                     : std::realloc(static_cast<void*>(data_), capacity * sizeof(T));  // NOLINT
    if (data == nullptr) {
      throw std::bad_alloc();
    }
    data_ = static_cast<T*>(data);
    capacity_ = capacity;
  }
  void assign(const T* values, size_t size) {
    reserve(size);
    std::copy(values, values + size, data_);
    size_ = size;
  }

  T* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

// Like std::erase_if: removes the elements for which `gone` is true and returns their number; the
// order of the rest does not change.
template <typename T, typename Predicate>
size_t erase_if(GrowingArray<T>& array, Predicate gone) {
  T* kept = std::remove_if(array.begin(), array.end(), gone);
  const auto removed = static_cast<size_t>(array.end() - kept);
  array.erase(kept, array.end());
  return removed;
}

}  // namespace shardlens::trace
