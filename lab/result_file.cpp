#include "lab/result_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace ninefold::lab {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw file_error(path + ": " + what + ": " + std::strerror(error));
}

// Throws, with nothing left open, unless every byte arrived on the disk.
void write_all(int file, const std::string& path, const std::string& text) {
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  // Some file systems report a full disk only here. EINVAL: a pipe or a terminal cannot be synced.
  if (error == 0 && fsync(file) != 0 && errno != EINVAL && errno != EROFS) error = errno;
  if (close(file) != 0 && error == 0) error = errno;
  if (error != 0) fail(path, "cannot be written", error);
}

bool is_regular_or_new(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

std::string beside(const std::string& path) { return path + ".part." + std::to_string(getpid()); }

int open_new(const std::string& path, const std::string& shown) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail(shown, "cannot be written", errno);
  return file;
}

}  // namespace

std::string read_text(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) fail(path, "cannot be read", EISDIR);
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, "cannot be read", errno);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<nlohmann::json> read_rows(const std::string& path) {
  const std::string text = read_text(path);
  std::vector<nlohmann::json> out;
  size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto wrong = [&](const std::string& what) {
      return file_error(path + ':' + std::to_string(number) + ": " + what);
    };
    nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (row.is_discarded() || !row.is_object()) throw wrong("not a JSON object");
    for (const char* key : {"op", "direction", "device", "dtype", "case", "provider", "check"})
      if (!row.contains(key) || !row[key].is_string())
        throw wrong(std::string("not a result row: no \"") + key + '"');
    out.push_back(std::move(row));
  }
  return out;
}

void write_text(const std::string& path, const std::string& text) {
  if (!is_regular_or_new(path)) {
    const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) fail(path, "cannot be written", errno);
    return write_all(file, path, text);
  }
  const std::string part = beside(path);
  try {
    write_all(open_new(part, path), path, text);
    if (rename(part.c_str(), path.c_str()) != 0) fail(path, "cannot be written", errno);
  } catch (...) {
    unlink(part.c_str());
    throw;
  }
}

void require_writable(const std::string& path) {
  if (!is_regular_or_new(path)) {
    const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) fail(path, "cannot be written", errno);
    close(file);
    return;
  }
  const std::string part = beside(path);
  close(open_new(part, path));
  unlink(part.c_str());
}

}  // namespace ninefold::lab
