// The front ends for raw text.
#include "k3/format/grammar/constraint.h"
#include "k3/format/grammar/front/ebnf.h"
#include "k3/format/grammar/grammar_impl.h"
#include "k3/format/grammar/schema/schema_compiler.h"
#include "k3/format/grammar/text/regex.h"

namespace k3 {

Result<std::shared_ptr<const Grammar>> Grammar::json_schema(std::shared_ptr<const TokenTrie> trie, std::string_view schema) {
  K3_TRY_ASSIGN(const JsonNode root, parse_json(schema));
  grammar::Builder builder;
  grammar::SchemaCompiler compiler(builder, root, "");
  K3_TRY_ASSIGN(const grammar::RuleId start, compiler.root_rule());
  return finish(std::move(trie), builder, start);
}

Result<std::shared_ptr<const Grammar>> Grammar::regex(std::shared_ptr<const TokenTrie> trie, std::string_view pattern) {
  K3_TRY_ASSIGN(grammar::TextDfa dfa, grammar::parse_regex(pattern, true));
  grammar::Builder builder;
  const grammar::Expr body = builder.text(std::move(dfa), grammar::Encoding::raw);
  return finish(std::move(trie), builder, builder.rule("the pattern", body));
}

Result<std::shared_ptr<const Grammar>> Grammar::ebnf(std::shared_ptr<const TokenTrie> trie, std::string_view text) {
  grammar::Builder builder;
  K3_TRY_ASSIGN(const grammar::RuleId start, grammar::parse_ebnf(builder, text));
  return finish(std::move(trie), builder, start);
}

Result<std::shared_ptr<const Grammar>> Grammar::finish(std::shared_ptr<const TokenTrie> trie,
                                                       const grammar::Builder& builder, uint32_t start) {
  K3_TRY_ASSIGN(grammar::Program program, grammar::compile(builder, start));
  auto impl = std::make_unique<Impl>(std::move(trie), std::move(program));
  return std::shared_ptr<const Grammar>(new Grammar(std::move(impl)));
}

}  // namespace k3
