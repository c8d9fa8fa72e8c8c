// Pickles become graphs; nothing is run, and all else is refused with the byte
// and the opcode.
#include "checkpoint/torch/unpickler.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickler.h"
#include "tests/testing/status_matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr PickleGlobal kGlobals[] = {
    {"collections", "OrderedDict", GlobalUse::kDict},
    {"torch", "Size", GlobalUse::kSize},
    {"torch", "float32", GlobalUse::kValue},
    {"m", "call", GlobalUse::kFunction},
    {"m", "Class", GlobalUse::kClass},
    {"m", "old", GlobalUse::kUnsupported},
};

// "\x80\x02", then `body`, then STOP.
std::string Program(const std::string& body, int protocol = 2) {
  return std::string("\x80") + static_cast<char>(protocol) + body + ".";
}

// Keeps the text that a graph points into.
class Graph {
 public:
  explicit Graph(const std::string& text)
      : text_(text), graph_(Unpickle(text_, kGlobals)) {
    EXPECT_OK(graph_);
  }
  const PickleGraph* operator->() const { return &*graph_; }
  PickleRef root() const { return graph_->root(); }
  std::vector<PickleRef> items() const {
    return graph_->ItemsOf(root()).ToVector();
  }
  // Items of items and so on, spelled out.
  std::string Spell(PickleRef ref, int depth = 0) const {
    if (depth > 5) return "...";
    const char kinds[] = "NFTifsb(lSdgcop";
    std::string text(1, kinds[static_cast<int>(ref.kind())]);
    if (const auto value = graph_->Int(ref)) return absl::StrCat(*value);
    if (const auto value = graph_->Float(ref)) return absl::StrCat(*value);
    if (const auto value = graph_->String(ref)) return std::string(*value);
    if (graph_->Global(ref)) return graph_->Global(ref)->ToString();
    if (graph_->Function(ref)) {
      return graph_->Function(ref)->ToString() +
             Spell(graph_->Arguments(ref), depth + 1);
    }
    if (graph_->Class(ref)) {
      return graph_->Class(ref)->ToString() +
             Spell(graph_->State(ref), depth + 1);
    }
    if (ref.kind() == PickleKind::kPersistent) {
      return text + Spell(graph_->PersistentId(ref), depth + 1);
    }
    if (ref.kind() < PickleKind::kTuple) return text;
    text += '[';
    for (const PickleRef item : graph_->ItemsOf(ref)) {
      text += Spell(item, depth + 1) + ' ';
    }
    return text + ']';
  }
  std::string Spell() const { return Spell(root()); }

 private:
  std::string text_;
  absl::StatusOr<PickleGraph> graph_;
};

std::string ErrorOf(const std::string& text) {
  const auto graph = Unpickle(text, kGlobals);
  return graph.ok() ? "no error" : graph.status().ToString();
}

TEST(UnpicklerTest, ReadsWhatThePicklerWrites) {
  const std::vector<int64_t> numbers = {0,
                                        1,
                                        -1,
                                        255,
                                        256,
                                        65535,
                                        65536,
                                        -65536,
                                        127,
                                        128,
                                        -128,
                                        -129,
                                        2147483647,
                                        2147483648,
                                        -2147483648,
                                        -2147483649,
                                        int64_t{1} << 39,
                                        -(int64_t{1} << 39),
                                        std::numeric_limits<int64_t>::max(),
                                        std::numeric_limits<int64_t>::min()};
  Pickler pickler;
  pickler.IntTuple(numbers);
  const Graph graph(pickler.Finish());
  const std::vector<PickleRef> items = graph.items();
  ASSERT_EQ(items.size(), numbers.size());
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(graph->Int(items[i]), numbers[i]);
  }
}

TEST(UnpicklerTest, ReadsScalarsOfEveryOpcode) {
  EXPECT_EQ(Graph(Program("N")).Spell(), "N");
  EXPECT_EQ(Graph(Program("\x88")).Spell(), "T");
  EXPECT_EQ(Graph(Program("\x89")).Spell(), "F");
  EXPECT_EQ(Graph(Program(std::string("G\x3f\xd0\0\0\0\0\0\0", 9))).Spell(),
            "0.25");
  EXPECT_EQ(Graph(Program(std::string("\x8a\0", 2))).Spell(), "0");
  EXPECT_EQ(Graph(Program("\x8a\x01\xff")).Spell(), "-1");
  EXPECT_EQ(Graph(Program(std::string("\x8b\x02\0\0\0\x01\x01", 7))).Spell(),
            "257");
  EXPECT_EQ(Graph(Program(std::string("X\x02\0\0\0hi", 7))).Spell(), "hi");
  EXPECT_EQ(Graph(Program("\x8c\x02hi")).Spell(), "hi");
  EXPECT_EQ(Graph(Program(std::string("\x8d\x02\0\0\0\0\0\0\0hi", 11))).Spell(),
            "hi");
  EXPECT_EQ(Graph(Program("U\x02hi")).Spell(), "hi");
  EXPECT_EQ(Graph(Program(std::string("T\x02\0\0\0hi", 7))).Spell(), "hi");
  EXPECT_EQ(Graph(Program("U\x01\xe9")).Spell(), "b");
  EXPECT_EQ(Graph(Program("C\x02hi")).Spell(), "b");
  EXPECT_EQ(Graph(Program("ctorch\nfloat32\n")).Spell(), "torch.float32");
  const std::string by_stack =
      "\x8c\x05torch\x8c\x07"
      "float32\x93";
  EXPECT_EQ(Graph(Program(by_stack, 4)).Spell(), "torch.float32");
}

TEST(UnpicklerTest, KeepsIntegersOfAnyLength) {
  const Graph graph(Program(std::string("\x8a\x09\0\0\0\0\0\0\0\0\x40", 11)));
  EXPECT_EQ(graph->Int(graph.root()), std::nullopt);
  EXPECT_EQ(*graph->IntBytes(graph.root()),
            std::string_view("\0\0\0\0\0\0\0\0\x40", 9));
}

TEST(UnpicklerTest, BuildsContainers) {
  EXPECT_EQ(Graph(Program(")")).Spell(), "([]");
  EXPECT_EQ(Graph(Program("K\x01\x85")).Spell(), "([1 ]");
  EXPECT_EQ(Graph(Program("K\x01K\x02\x86")).Spell(), "([1 2 ]");
  EXPECT_EQ(Graph(Program("K\x01K\x02K\x03\x87")).Spell(), "([1 2 3 ]");
  EXPECT_EQ(Graph(Program("(K\x01K\x02K\x03K\x04t")).Spell(), "([1 2 3 4 ]");
  EXPECT_EQ(Graph(Program("]K\x01"
                          "a(K\x02K\x03"
                          "e(eK\x04"
                          "a"))
                .Spell(),
            "l[1 2 3 4 ]");
  EXPECT_EQ(Graph(Program("}K\x01K\x02s(K\x03K\x04u")).Spell(), "d[1 2 3 4 ]");
  EXPECT_EQ(Graph(Program("\x8f(K\x01K\x02\x90")).Spell(), "S[1 2 ]");
  // Two lists that grow in turns.
  const std::string turns(
      "(]q\0]q\x01t"
      "h\0(K\x01K\x02"
      "e0h\x01(K\x03"
      "e0h\0(K\x04"
      "e0",
      31);
  EXPECT_EQ(Graph(Program(turns)).Spell(), "([l[1 2 4 ] l[3 ] ]");
}

TEST(UnpicklerTest, CallsStayCalls) {
  EXPECT_EQ(Graph(Program("cm\ncall\nK\x01\x85R")).Spell(), "m.call([1 ]");
  EXPECT_EQ(Graph(Program("cm\nClass\n)\x81")).Spell(), "m.ClassN");
  EXPECT_EQ(Graph(Program("cm\nClass\n)\x81}K\x01K\x02sb")).Spell(),
            "m.Classd[1 2 ]");
  EXPECT_EQ(Graph(Program("K\x01\x85Q")).Spell(), "p([1 ]");
}

TEST(UnpicklerTest, KnowsDictsAndSizesOfTorch) {
  EXPECT_EQ(Graph(Program("ccollections\nOrderedDict\n)R")).Spell(), "d[]");
  EXPECT_EQ(Graph(Program("ccollections\nOrderedDict\n](K\x01K\x02\x86"
                          "e\x85R"))
                .Spell(),
            "d[1 2 ]");
  // Attributes of a dict are dropped.
  EXPECT_EQ(
      Graph(Program("ccollections\nOrderedDict\n)R}K\x01K\x02sb")).Spell(),
      "d[]");
  EXPECT_EQ(Graph(Program("ctorch\nSize\nK\x04K\x03\x86\x85R")).Spell(),
            "([4 3 ]");
  EXPECT_EQ(Graph(Program("ctorch\nSize\n)\x85R")).Spell(), "([]");
}

TEST(UnpicklerTest, RemembersAndForgets) {
  EXPECT_EQ(Graph(Program("K\x07q\x05h\x05\x86")).Spell(), "([7 7 ]");
  EXPECT_EQ(Graph(Program(std::string("K\x07r\x05\0\0\0j\x05\0\0\0\x86", 13)))
                .Spell(),
            "([7 7 ]");
  EXPECT_EQ(Graph(Program(std::string("K\x07\x94h\0\x86", 6), 4)).Spell(),
            "([7 7 ]");
  EXPECT_EQ(Graph(Program("K\x01K\x02"
                          "0"))
                .Spell(),
            "1");
  EXPECT_EQ(Graph(Program("K\x01(K\x02K\x03"
                          "1"))
                .Spell(),
            "1");
  EXPECT_EQ(Graph(Program("K\x01"
                          "2\x86"))
                .Spell(),
            "([1 1 ]");
}

TEST(UnpicklerTest, AListMayHoldItself) {
  const Graph graph(Program(std::string("]q\0h\0a", 6)));
  EXPECT_EQ(graph.Spell(), "l[l[l[l[l[l[... ] ] ] ] ] ]");
}

TEST(UnpicklerTest, ReadsFrames) {
  const std::string frame("\x95\x03\0\0\0\0\0\0\0", 9);
  EXPECT_EQ(Graph(Program(frame + "K\x01.", 4)).Spell(), "1");
  EXPECT_THAT(ErrorOf(Program(frame + "J\x01\x01\x01\x01", 4)),
              HasSubstr("byte 11: BININT reaches over the end of its frame"));
  EXPECT_THAT(ErrorOf(Program(frame + frame, 4)),
              HasSubstr("reaches over the end"));
  const std::string wide("\x95\x0a\0\0\0\0\0\0\0", 9);
  EXPECT_THAT(ErrorOf(Program(wide + frame + "K\x01", 4)),
              HasSubstr("FRAME: a frame inside a frame"));
  EXPECT_THAT(ErrorOf(Program(wide + "N", 4)),
              HasSubstr("a frame of 10 bytes, the pickle has 2"));
}

TEST(UnpicklerTest, TheRestIsForTheCaller) {
  const std::string text = Program("N") + "more";
  EXPECT_EQ(Graph(text)->consumed(), 4u);
}

TEST(UnpicklerTest, NamesTheGlobalThatItRefuses) {
  EXPECT_THAT(Unpickle(Program("cos\nsystem\n"), kGlobals),
              StatusIs(Code::kPermissionDenied,
                       "byte 2: GLOBAL: the pickle asks for os.system"));
  EXPECT_THAT(Unpickle(Program("\x8c\x05posix\x8c\x06system\x93", 4), kGlobals),
              StatusIs(Code::kPermissionDenied,
                       "STACK_GLOBAL: the pickle asks for posix.system"));
  EXPECT_THAT(
      Unpickle(Program("ctorch\nfloat32\n)R"), kGlobals),
      StatusIs(Code::kPermissionDenied, "torch.float32 may not be called"));
  EXPECT_THAT(Unpickle(Program("cm\ncall\n)\x81"), kGlobals),
              StatusIs(Code::kPermissionDenied, "wanted a known class"));
  EXPECT_THAT(Unpickle(Program("cm\nold\n"), kGlobals),
              StatusIs(Code::kUnimplemented, "m.old is not supported"));
  EXPECT_THAT(Unpickle(Program("cm\ncall\n)R}b"), kGlobals),
              StatusIs(Code::kPermissionDenied,
                       "the state of a call of m.call may not be set"));
}

TEST(UnpicklerTest, RefusesWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "ends without STOP"},
      {"N.", "wanted PROTO"},
      {"\x80\x01N.", "protocol 1, wanted 2 to 5"},
      {"\x80\x06N.", "protocol 6, wanted 2 to 5"},
      {Program("\x80\x02N"), "at the start only"},
      {"\x80\x02N", "byte 2: the pickle ends without STOP"},
      {Program("\xfe"), "byte 2: no such opcode here: 0xfe"},
      {Program("i"), "no such opcode"},
      {Program(""), "STOP: stack underflow"},
      {Program("NN"), "wanted one value on the stack, it has 2"},
      {Program("N("), "STOP: stack underflow"},
      {Program("(N"), "it has 1 and 1 marks"},
      {Program("tR"), "TUPLE: stack underflow: no mark"},
      {Program("N(\x85"), "the stack above its mark has 0"},
      {Program("(K\x01(s"), "underflow"},
      {Program("\x86"), "wanted 2 items"},
      {Program("R"), "REDUCE: stack underflow"},
      {Program("NNR"), "wanted a function and a tuple, got None and None"},
      {Program("h\x09"), "BINGET: memo entry 9 was never put"},
      {Program("q\x01"), "BINPUT: stack underflow"},
      {Program("Nr\xff\xff\xff\x7f"), "memo entry 2147483647"},
      {Program("}(K\x01u"), "a key without a value"},
      {Program("](K\x01K\x01u"), "cannot add items to a list"},
      {Program("NK\x01"
               "a"),
       "APPEND: cannot add items to None"},
      {Program("X\xff\xff\xff\xff"), "BINUNICODE wants"},
      {Program(std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", 9)),
       "BINUNICODE8 wants 18446744073709551615 bytes"},
      {Program("J\x01"), "BININT wants 4 bytes, the pickle has 2"},
      {Program("cos"), "GLOBAL wants"},
      {Program("cos\nsys"), "GLOBAL wants"},
      {Program(std::string("X\x01\0\0\0\xff", 6)), "no UTF-8"},
      {Program("K\x01Q"), "BINPERSID: wanted a tuple"},
      {Program("K\x01K\x02\x93"), "STACK_GLOBAL: wanted a text, got 2"},
      {Program("ccollections\nOrderedDict\nK\x01K\x02\x86R"),
       "wants one list, got 2"},
      {Program("ccollections\nOrderedDict\n](K\x01"
               "e\x85R"),
       "list of pairs"},
      {Program("ctorch\nSize\n)R"), "torch.Size wants one tuple"},
      {Program("cm\nClass\n)\x81}b}b"), "m.Class may not be set"}};
  for (const auto& [text, reason] : cases) {
    EXPECT_THAT(ErrorOf(text), HasSubstr(reason));
  }
}

TEST(UnpicklerTest, GivesUpOnMoreObjectsThanBytes) {
  EXPECT_THAT(ErrorOf("\x80\x02" + std::string(1 << 20, ']')),
              HasSubstr("more than ten times its size"));
  EXPECT_THAT(ErrorOf("\x80\x02" + std::string(1 << 20, '(')),
              HasSubstr("ends without STOP"));
}

}  // namespace
}  // namespace tessera
