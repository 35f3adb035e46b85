/* SPDX-License-Identifier: Apache-2.0 */
/* The table of patterns. The pieces are those of llama.cpp, which has cutters of its own for some of
 * its expressions and reads others loosely: to it \p{Lu} is any letter. */
#include "lib/model/pattern_table.h"

#include <string.h>

/* White space, written out: PCRE2 counts U+180E among it, which Unicode has not done since 6.3. */
#define S                                                                                          \
    "\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}" \
    "\\x{3000}"
#define OTHERS "[^" S "\\p{L}\\p{N}]+"
/* White space up to the last line end. */
#define LINES "[" S "]*[\\r\\n]+"
/* White space up to the last one before a word, which may belong to the word. */
#define GAP "[" S "]+(?![^" S "])|[" S "]+"
/* What may stand before a word. */
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
/* Capitals are written out: (?i:s) would also take U+017F, which llama.cpp does not. */
#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define CONTRACTED  "(?:" CONTRACTION ")?"

#define DIGIT  "\\p{N}"
#define DIGITS "\\p{N}{1,3}"

#define GPT2 "'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?" OTHERS "|" GAP

/* Words, numbers, other characters and what may follow them, white space. */
#define TEXT(words, numbers, behind) words "|" numbers "| ?" OTHERS behind "|" LINES "|" GAP
#define LLAMA3(numbers)              TEXT(CONTRACTION "|" LEAD "\\p{L}+", numbers, "[\\r\\n]*")
#define MARKED                       LEAD "[\\p{L}\\p{M}]+"
#define QWEN35                                                                                     \
    CONTRACTION "|" MARKED "|" DIGIT "| ?[^" S "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES "|" GAP

/* A word ends before a capital of ASCII that follows a small letter; other letters count as both. */
#define CASED(upper, lower)                                                                        \
    LEAD upper "*" lower "+" CONTRACTED "|" LEAD upper "+" lower "*" CONTRACTED
#define TEKKEN LEAD "[^\\P{L}a-z]*[^\\P{L}A-Z]+|" LEAD "[^\\P{L}a-z]+[^\\P{L}A-Z]*"
#define GPT4O  CASED("[^\\P{L}a-z]", "[^\\P{L}A-Z]")
/* Letters and marks are what is nothing else. */
#define NO_MARK "\\p{C}\\p{N}\\p{P}\\p{S}\\p{Z}"
#define GRANITE CASED("[^" NO_MARK "a-z]", "[^" NO_MARK "A-Z]")

#define HAN                                                                                        \
    "\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}\\x{f900}-\\x{faff}\\x{20000}-\\x{2a6df}"               \
    "\\x{2a700}-\\x{2ebef}\\x{2f800}-\\x{2fa1f}"
#define KIMI "[" HAN "]+|" LEAD "[^\\P{L}" HAN "]+" CONTRACTED

/* Han and kana; U+0800 to Han and Hangul, without white space. */
#define HAN_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+"
#define EAST                                                                                       \
    "[\\x{800}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}"                 \
    "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{9fa5}\\x{ac00}-\\x{d7ff}]+"

/* The letters with a case that DeepSeek's first vocabulary names. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}" \
    "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}"         \
    "\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"  \
    "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"                 \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}"                 \
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"         \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}"        \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"                 \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}"         \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}"                   \
    "\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}"         \
    "\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"                  \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}"                 \
    "\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}"                 \
    "\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}"           \
    "\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_MARKS                                                                             \
    "!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3001}\\x{3002}"
/* White space at the end of a piece. It is looked for where white space begins: from each place in
 * turn, a long run would be read again and again. */
#define TRAILING "(?<![" S "])[" S "]++\\z"

/* A mark with a word of ASCII, words, marks and what may follow them, white space. */
#define DEEPSEEK3(behind)                                                                          \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "                      \
    "?[\\p{P}\\p{S}]+" behind "|" GAP

/* Digits in groups of three from the right; what stands before a number belongs to its first group.
 * The first expression ends pieces behind numbers, so that the second counts each number once. */
#define NUMBERS "\\G\\P{N}*\\p{N}+"
#define THREES  "\\A\\P{N}*\\p{N}{1,2}(?=(?:\\p{N}{3})*+\\z)|\\G\\P{N}*\\p{N}{3}"

#define YOUTU                                                                                      \
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}"     \
    "\\x{2019}\\x{2014}\\x{ff1a}-\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|"      \
    "[\\x{3105}-\\x{312f}]+|" HAN_KANA
#define AFMOE                                                                                      \
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{8c48}-\\x{faff}\\x{3040}-\\x{30ff}"                \
    "\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{eff}\\x{1780}-\\x{17ff}"                   \
    "\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}\\x{1100}-\\x{11ff}]+"

#define BLOOM        " ?[^" S "(|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define FALCON_MARKS "\\p{P}$+<=>\\^~|"

/* White space by powers of two. Where no line end follows, only the first piece of a long run looks
 * for one: behind it stands other white space. */
#define HALVES                                                                                     \
    "[" S "]{512}(?![^" S "])|[" S "]{256}(?![^" S "])|[" S "]{128}(?![^" S "])|"                  \
    "[" S "]{64}(?![^" S "])|[" S "]{32}(?![^" S "])|[" S "]{16}(?![^" S "])|"                     \
    "[" S "]{8}(?![^" S "])|[" S "]{4}(?![^" S "])|[" S "]{1,2}(?![^" S "])|[" S "]"
#define JAIS2                                                                                      \
    CONTRACTION "|" LEAD "\\p{L}+|" DIGITS "| ?" OTHERS "[\\r\\n]*|(?<!(?![\\r\\n])[" S "])" LINES \
                "|" HALVES
/* Words with one space between two are one piece. */
#define EXAONE_MOE                                                                                 \
    CONTRACTION "|" LEAD "\\p{L}\\p{M}*+(?: ?\\p{L}\\p{M}*+)*+|" DIGIT "| ?" OTHERS                \
                "[\\r\\n/]?|" LINES "|" GAP

static const tms_family families[] = {
    {.names = "gpt-2 phi-2 mpt olmo jais trillion exaone4 gigachat a.x-4.0 mellum granite-docling "
              "jina-es jina-de jina-v1-en roberta-bpe",
     .expressions = {GPT2}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     .expressions = {DIGIT, GPT2}},
    {.names = "default", .expressions = {"[" FALCON_MARKS "]+", GPT2, "\\p{N}+", "[0-9]{3}"}},
    {.names = "falcon", .expressions = {"[" FALCON_MARKS "`]+", GPT2, "[0-9]{3}"}},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     .expressions = {LLAMA3(DIGITS)},
     .whole_pieces = true,
     .add_bos = true},
    {.names = "glm4 glm5", .expressions = {LLAMA3(DIGITS)}, .whole_pieces = true},
    {.names = "chatglm-bpe smaug-bpe dbrx", .expressions = {LLAMA3(DIGITS)}},
    {.names = "minicpm5", .expressions = {DIGITS, LLAMA3("\\p{N}+")}, .whole_pieces = true},
    {.names = "qwen2 deepseek-r1-qwen megrez kormo f2llmv2 stablelm2 hunyuan solar-open grok-2 "
              "bailingmoe bailingmoe2 llada-moe",
     .expressions = {LLAMA3(DIGIT)}},
    {.names = "qwen35", .expressions = {QWEN35}},
    {.names = "ufakzeka", .expressions = {TEXT(LEAD "\\p{L}+", DIGIT, "[\\r\\n]*")}},
    {.names = "seed-coder", .expressions = {TEXT(CONTRACTION "|" LEAD "\\p{L}+", DIGIT, "")}},
    {.names = "laguna", .expressions = {"[^\\n]+|\\n+", LLAMA3(DIGIT)}},
    {.names = "exaone-moe", .expressions = {EXAONE_MOE}},
    {.names = "jais-2", .expressions = {JAIS2}},
    {.names = "tekken",
     .expressions = {TEXT(TEKKEN, DIGIT, "[\\r\\n/]*")},
     .whole_pieces = true,
     .add_bos = true},
    {.names = "gpt-4o llama4 kanana2 talkie minimax-m2",
     .expressions = {TEXT(GPT4O, DIGITS, "[\\r\\n/]*")}},
    {.names = "granite-embed-multi-97m",
     .expressions = {TEXT(GRANITE, DIGITS, "[\\r\\n/]*")},
     .whole_pieces = true},
    {.names = "tiny_aya cohere2moe",
     .expressions = {NUMBERS, THREES, TEXT(MARKED CONTRACTED, DIGITS, "[\\r\\n/]*")}},
    {.names = "youtu",
     .expressions = {YOUTU, TEXT(MARKED CONTRACTED, DIGIT, "[\\r\\n/]*")},
     .whole_pieces = true},
    {.names = "kimi-k2", .expressions = {TEXT(KIMI, DIGITS, "[\\r\\n]*")}},
    {.names = "deepseek-llm",
     .expressions = {"[\\r\\n]", "[" S "]?[" DEEPSEEK_LETTERS "]+", "[" S "]?[" DEEPSEEK_MARKS "]+",
                     TRAILING, EAST, "\\p{N}+"}},
    {.names = "deepseek-coder",
     .expressions = {"[\\r\\n]", "[" S "]?\\p{L}+", "[" S "]?\\p{P}+", EAST, DIGIT}},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     .expressions = {DIGITS, HAN_KANA, DEEPSEEK3("[\\r\\n]*|" LINES)}},
    {.names = "spark2_5", .expressions = {DIGIT, HAN_KANA, DEEPSEEK3("|[\\r\\n]")}},
    {.names = "afmoe", .expressions = {NUMBERS, THREES, AFMOE, DEEPSEEK3("[\\r\\n]*|" LINES)}},
    {.names = "bloom poro-chat gpt3-finnish", .expressions = {BLOOM}},
    {.names = "viking", .expressions = {BLOOM, DIGIT}},
    {.names = "chameleon",
     .expressions = {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", DIGIT,
                     "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     .add_bos = true},
};
#define N_FAMILIES (sizeof families / sizeof families[0])

/* What llama.cpp also knows, and why it is not read. */
static const struct {
    const char *names, *reason;
} refused[] = {
    {"gemma4 granite-embed-multi-311m sarvam-moe",
     "it merges characters, not bytes, of whole lines"},
    {"whitespace", "it merges characters, not bytes"},
    {"superbpe", "its expression matches places, not pieces"},
    {"jina-v2-de jina-v2-es jina-v2-code modern-bert", "the spaces before its mask are left out"},
};
#define N_REFUSED (sizeof refused / sizeof refused[0])

static bool has_word(const char *words, tms_text word) {
    for (size_t bytes; *words != '\0'; words += bytes + (words[bytes] == ' ')) {
        bytes = strcspn(words, " ");
        if (bytes == word.bytes && memcmp(words, word.at, bytes) == 0) return true;
    }
    return false;
}

const tms_family *tms_family_get(size_t index) {
    return index < N_FAMILIES ? &families[index] : NULL;
}

tamis_status tms_family_find(tms_text name, const tms_family **out, tamis_error *error) {
    for (size_t i = 0; i < N_FAMILIES; ++i) {
        *out = &families[i];
        if (has_word(families[i].names, name)) return TAMIS_OK;
    }
    for (size_t i = 0; i < N_REFUSED; ++i)
        TMS_REQUIRE(!has_word(refused[i].names, name), TAMIS_E_UNSUPPORTED,
                    "the vocabulary's pattern '%s' is not read: %s", tms_text_show(name).text,
                    refused[i].reason);
    return tms_model_fail(error, TAMIS_E_UNSUPPORTED,
                          "the vocabulary's pattern '%s' is not known; tamis/vocab.h lists those "
                          "that are",
                          tms_text_show(name).text);
}
