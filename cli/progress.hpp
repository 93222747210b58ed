// What is being done, on stderr: one line that is overwritten on a terminal, plain lines otherwise.
#pragma once

#include <string>

namespace ninefold::cli {

class progress {
 public:
  progress();
  ~progress() { clear(); }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  void show(const std::string& text);
  void clear();  // before something else is printed

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace ninefold::cli
