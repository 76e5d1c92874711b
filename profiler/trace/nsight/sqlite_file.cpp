#include "profiler/trace/nsight/sqlite_file.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

std::string as_name(std::string_view name) {
  return fmt::format("\"{}\"", name);
}

}  // namespace

void SqliteFile::Close::operator()(sqlite3* database) const {
  sqlite3_close(database);
}

void SqliteRows::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

SqliteFile::SqliteFile(const std::filesystem::path& path) : path_(path) {
  // Immutable: no lock and no journal, so that nothing is written next to the file.
  std::string uri = "file:";
  for (const char c : std::filesystem::absolute(path).string()) {
    uri += c == '%' || c == '?' || c == '#' ? fmt::format("%{:02x}", c) : std::string(1, c);
  }
  uri += "?immutable=1";
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(uri.c_str(), &opened, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
  database_.reset(opened);
  if (code != SQLITE_OK) {
    fail(sqlite3_errstr(code));
  }
  // A file of others must not make SQLite call functions or write.
  sqlite3_db_config(opened, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
}

void SqliteFile::fail(const std::string& what) const {
  throw InputError(path_.string(), what);
}

bool SqliteFile::has_table(std::string_view table) const {
  SqliteRows rows(*this, "sqlite_schema", {"type", "name"});
  while (rows.next()) {
    // A view would run what is written in the file.
    if (rows.text(0) == "table" && rows.text(1) == table) {
      return true;
    }
  }
  return false;
}

bool SqliteFile::has_column(std::string_view table, std::string_view column) const {
  return sqlite3_table_column_metadata(database_.get(), nullptr, std::string(table).c_str(),
                                       std::string(column).c_str(), nullptr, nullptr, nullptr,
                                       nullptr, nullptr) == SQLITE_OK;
}

SqliteRows::SqliteRows(const SqliteFile& file,
                       std::string_view table,
                       const std::vector<std::string>& columns)
    : file_(file) {
  std::string query = "SELECT ";
  for (const std::string& column : columns) {
    query += query.ends_with(' ') ? "" : ",";
    query += table == "sqlite_schema" || file.has_column(table, column) ? as_name(column) : "NULL";
  }
  query += " FROM " + as_name(table);
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(file.database_.get(), query.c_str(),
                                      static_cast<int>(query.size()), &statement, nullptr);
  statement_.reset(statement);
  if (code != SQLITE_OK) {
    file.fail(sqlite3_errmsg(file.database_.get()));
  }
}

bool SqliteRows::next() {
  const int code = sqlite3_step(statement_.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) {
    file_.fail(sqlite3_errmsg(file_.database_.get()));
  }
  return code == SQLITE_ROW;
}

bool SqliteRows::is_null(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

int64_t SqliteRows::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string_view SqliteRows::text(int column) const {
  const auto* const text = sqlite3_column_text(statement_.get(), column);
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  return text == nullptr
             ? std::string_view()
             : std::string_view(reinterpret_cast<const char*>(text), static_cast<size_t>(bytes));
}

}  // namespace shardlens::trace
