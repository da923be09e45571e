// Internal to format/grammar. What stands behind the classes of constraint.h.
#pragma once

#include <memory>
#include <string>

#include "k3/format/grammar/automaton/program.h"
#include "k3/format/grammar/constraint.h"
#include "k3/format/grammar/mask/byte_trie.h"
#include "k3/format/grammar/mask/mask_cache.h"

namespace k3 {

struct TokenTrie::Impl {
  std::string text;
  grammar::Vocabulary vocabulary;
};

struct Grammar::Impl {
  Impl(std::shared_ptr<const TokenTrie> trie_in, grammar::Program program_in)
      : trie(std::move(trie_in)), program(std::move(program_in)), masks(program, vocabulary()) {}
  const grammar::Vocabulary& vocabulary() const { return trie->impl_->vocabulary; }

  std::shared_ptr<const TokenTrie> trie;
  grammar::Program program;
  mutable grammar::MaskCache masks;
  std::string given;  // text of the prompt that belongs to the constrained part already
};

}  // namespace k3
