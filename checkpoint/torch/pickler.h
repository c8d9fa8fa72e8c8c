// Writes pickles that torch's restricted unpickler takes: protocol 2.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// Appends opcode after opcode; whoever calls it keeps the order right. No memo
// is used, so that every value stands for itself.
class Pickler {
 public:
  Pickler();  // Starts the pickle.

  void None();
  void Bool(bool value);
  void Int(int64_t value);
  void BigInt(std::string_view twos_complement);
  void Float(double value);
  void Text(std::string_view utf8);
  void Global(std::string_view module, std::string_view name);

  void Mark();
  void Tuple();  // Of what stands above the mark.
  void IntTuple(std::span<const int64_t> values);
  void EmptyTuple();
  void EmptyList();
  void Appends();  // What stands above the mark to the list below it.
  void EmptyDict();
  void SetItems();
  void Reduce();
  void NewObject();  // An instance of the global on top, without arguments.
  void Build();
  void PersistentId();

  std::string Finish();  // Ends the pickle, and gives it.

 private:
  void Op(uint8_t code) { text_ += static_cast<char>(code); }

  std::string text_;
};

}  // namespace tessera
