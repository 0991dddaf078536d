#include "session/line.hpp"

#include <gtest/gtest.h>

#include <string>

namespace wiresum::session {
namespace {

TEST(Line, ALineSurvivesEncoding) {
  const Line line{.word = "ended", .fields = {{"error", "JoinError"}, {"text", "a\tb\\n\nc = d"}, {"results.0", ""}}};
  const std::string text = encode(line);
  ASSERT_EQ(text.back(), '\n');
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const Line read = decode(std::string_view(text).substr(0, text.size() - 1));
  EXPECT_EQ(read.word, line.word);
  EXPECT_EQ(read.fields, line.fields);
  EXPECT_TRUE(decode("leave").fields.empty());
}

TEST(Line, AnInvalidLineIsRefused) {
  for (const char* const text : {"", "\t", "Ended", "ended\t", "ended\ta=1\t", "ended\ttext", "ended\t=a",
                                 "ended\tText=a", "ended\ta=1\ta=2", "ended\ta=\\", "ended\ta=\\x", "en ded"}) {
    EXPECT_THROW((void)decode(text), LineError) << text;
  }
  EXPECT_THROW((void)decode(std::string(kLineBytesMax, 'a')), LineError);
  std::string many = "ended";
  for (std::size_t i = 0; i <= kFieldsMax; ++i) many += "\tf" + std::to_string(i) + "=1";
  EXPECT_THROW((void)decode(many), LineError);
  EXPECT_THROW((void)encode({.word = "ended", .fields = {{"text", std::string(kLineBytesMax, 'a')}}}), LineError);
}

TEST(Line, ANumberOutsideItsLimitsIsRefused) {
  const Line line = decode("bind\tcount=16\tnegative=-1\tlarge=99999999999999999999\tspaced= 1\tempty=");
  EXPECT_EQ(line.number("count", 1, 16), 16u);
  EXPECT_THROW((void)line.number("count", 17, 20), LineError);
  EXPECT_THROW((void)line.number("count", 1, 15), LineError);
  for (const char* const name : {"negative", "large", "spaced", "empty", "missing"}) {
    EXPECT_THROW((void)line.number(name, 0, UINT64_MAX), LineError) << name;
  }
}

}  // namespace
}  // namespace wiresum::session
