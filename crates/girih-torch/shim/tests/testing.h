// A test is a sentence and a block; main.cpp runs them all, in the order of the files' names.
#ifndef GIRIH_SHIM_TESTS_TESTING_H
#define GIRIH_SHIM_TESTS_TESTING_H

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace testing {

struct Test {
  std::string sentence;
  std::function<void()> body;
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Registration {
  Registration(std::string sentence, std::function<void()> body) {
    tests().push_back({std::move(sentence), std::move(body)});
  }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

// Runs all tests. Returns how many failed, which standard error names.
inline int run_all() {
  int failed = 0;
  for (const Test& test : tests()) {
    try {
      test.body();
    } catch (const std::exception& error) {
      ++failed;
      std::fprintf(stderr, "FAILED: %s\n  %s\n", test.sentence.c_str(), error.what());
    }
  }
  return failed;
}

} // namespace testing

#define TESTING_JOIN_OF(left, right) left##right
#define TESTING_JOIN(left, right) TESTING_JOIN_OF(left, right)

#define TEST(sentence)                                                                         \
  static void TESTING_JOIN(test_, __LINE__)();                                                 \
  static const testing::Registration TESTING_JOIN(registration_, __LINE__)(                    \
      sentence, &TESTING_JOIN(test_, __LINE__));                                               \
  static void TESTING_JOIN(test_, __LINE__)()

#define EXPECT(condition)                                    \
  do {                                                       \
    if (!(condition)) {                                      \
      testing::fail(__FILE__, __LINE__, "not " #condition);  \
    }                                                        \
  } while (false)

#define EXPECT_EQ(left, right)                                                            \
  do {                                                                                    \
    const auto left_value = (left);                                                       \
    const auto right_value = (right);                                                     \
    if (!(left_value == right_value)) {                                                   \
      std::ostringstream text;                                                            \
      text << #left " is " << left_value << ", not " << right_value;                      \
      testing::fail(__FILE__, __LINE__, text.str());                                      \
    }                                                                                     \
  } while (false)

// Runs `statement`, which must throw an `Error` whose text contains `part`.
#define EXPECT_THROWS(Error, part, statement)                                              \
  do {                                                                                     \
    bool thrown = false;                                                                   \
    try {                                                                                  \
      statement;                                                                           \
    } catch (const Error& error) {                                                         \
      thrown = true;                                                                       \
      if (std::string(error.what()).find(part) == std::string::npos) {                     \
        testing::fail(__FILE__, __LINE__, std::string("the text is: ") + error.what());    \
      }                                                                                    \
    }                                                                                      \
    if (!thrown) {                                                                         \
      testing::fail(__FILE__, __LINE__, #statement " threw nothing");                      \
    }                                                                                      \
  } while (false)

#endif
