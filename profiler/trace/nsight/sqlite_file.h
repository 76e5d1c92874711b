#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct sqlite3;
struct sqlite3_stmt;

namespace shardlens::trace {

// An SQLite database that is only read. Errors of every call: InputError with the file's name and
// SQLite's message.
class SqliteFile {
 public:
  explicit SqliteFile(const std::filesystem::path& path);

  [[nodiscard]] bool has_table(std::string_view table) const;
  [[nodiscard]] bool has_column(std::string_view table, std::string_view column) const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  friend class SqliteRows;
  struct Close {
    void operator()(sqlite3* database) const;
  };
  std::filesystem::path path_;
  std::unique_ptr<sqlite3, Close> database_;
};

// Some columns of all rows of a table, in the order of the file. A column that the table has not is
// null in each row.
class SqliteRows {
 public:
  // `table`, `columns`: names, without quotes. `file` must outlive this.
  SqliteRows(const SqliteFile& file,
             std::string_view table,
             const std::vector<std::string>& columns);

  // Whether there is a next row, which the others then read.
  [[nodiscard]] bool next();
  [[nodiscard]] bool is_null(int column) const;
  // 0 for null.
  [[nodiscard]] int64_t integer(int column) const;
  // "" for null; valid until next().
  [[nodiscard]] std::string_view text(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  const SqliteFile& file_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

}  // namespace shardlens::trace
