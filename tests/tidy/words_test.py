import unittest

from small_tree import places, tree_of

from tidy_checks.words import check_columns, check_glossary, check_names, check_of_comments
from tidy_checks.words import check_whitespace, check_words


class Names(unittest.TestCase):
    def test_empty_names(self):
        for name in ["Manager", "ChunkManager", "SocketUtil", "RingImpl", "JobInfo", "Data"]:
            self.assertEqual(places(check_names(tree_of({"base/a.h": f"\nclass {name} {{\n}};\n"}))), [("base/a.h", 2)], name)

    def test_speaking_names(self):
        for code in ["class ChunkTable {};", "struct DataFile {};", "class Database;", "class Information {};", "namespace tidepool::shm {}"]:
            self.assertEqual(check_names(tree_of({"base/a.h": code + "\n"})), [], code)

    def test_a_third_level(self):
        self.assertEqual(places(check_names(tree_of({"base/a.h": "namespace tidepool::shm::ring {}\n"}))), [("base/a.h", 1)])


class Words(unittest.TestCase):
    def test_unfinished_work(self):
        for word in ["TO" + "DO", "FIX" + "ME"]:
            self.assertEqual(places(check_words(tree_of({"docs/a.md": f"x\n{word}: later\n"}))), [("docs/a.md", 2)], word)

    def test_paths_of_one_machine(self):
        for path in ["/ho" + "me/alice/x", "/ro" + "ot/x", "/wo" + "rk/main/x", ".." + "/shared/x"]:
            self.assertEqual(places(check_words(tree_of({"scripts/a": f"cd {path}\n"}))), [("scripts/a", 1)], path)

    def test_lawful_paths(self):
        for path in ["/run/tidepool/admin.sock", "$HOME/x", "docs/wo" + "rk/x", "~/ro" + "ot/x", "/usr/share/common-licenses"]:
            self.assertEqual(check_words(tree_of({"scripts/a": f"cd {path}\n"})), [], path)


class GoneWords(unittest.TestCase):
    def test_words_that_were_renamed(self):
        for path, code in [("memserver/a.h", "// The rank's seat."), ("trainer/a.cpp", "Seat* seat;"), ("trainer/a.h", "TakeSeat();"),
                           ("memserver/a.h", "A(const Parts& parts);"), ("memserver/a.cpp", "chunk.away()"), ("memserver/a.h", "StandIns all;"),
                           ("memserver/a.h", "// one stand-in a place"), ("trainer/a.h", "// The pass goes dry."), ("trainer/a.cpp", "cache->dry()"),
                           ("memserver/a.h", "bool Tend(int64_t now_ns);"), ("tests/a.cpp", "world.TendShares();"), ("memserver/a.h", "bool brings_rcache;"),
                           ("memserver/a.h", "struct BroughtParts {};"), ("tests/a.cpp", "State::kThere"), ("memserver/a.cpp", "FormerSelfLeaves(event)"),
                           ("memserver/a.h", "struct Ride {};"), ("docs/a.md", "a job's ranks' seats")]:
            self.assertEqual(places(check_words(tree_of({path: f"\n{code}\n"}))), [(path, 2)], code)

    def test_lawful_words(self):
        for path, code in [("memserver/a.h", "explicit Session(Parts parts);"), ("client/a.cpp", "invocation.dry_run"), ("memserver/a.h", "// it goes away"),
                           ("tests/a.cpp", "StandIn(uuid); // the stand-in for the driver"), ("docs/decisions/041-a.md", "the seats"),
                           ("memserver/a.h", "// They override it, or provide it."), ("trainer/a.h", "// Attended, and extended."), ("python/a.py", "seat = 1")]:
            self.assertEqual(check_words(tree_of({path: code + "\n"})), [], code)


class OfComments(unittest.TestCase):
    def test_a_comment_without_its_subject(self):
        for comment in ["// Of a chunk: its bytes.", "  // Of the pool.", "//Of all.", "/// Of each rank.", "// x\n// Of one step."]:
            line = 1 + comment.count("\n")
            self.assertEqual(places(check_of_comments(tree_of({"base/a.h": comment + "\nint x;\n"}))), [("base/a.h", line)], comment)

    def test_comments_with_their_subject(self):
        for comment in ["// Bytes of a chunk.", "int x;  // of a chunk", "int x;  // Of a chunk", "// Often enough.", "// (Of both.)"]:
            self.assertEqual(check_of_comments(tree_of({"base/a.h": comment + "\n"})), [], comment)

    def test_texts_that_are_not_cpp(self):
        self.assertEqual(check_of_comments(tree_of({"docs/a.md": "// Of a page.\n", "client/a.js": "// Of a script.\n"})), [])


class Glossary(unittest.TestCase):
    HEAD = "| word | elsewhere | what it is | file |\n|---|---|---|---|\n"

    def test_a_row_names_a_file_that_exists(self):
        rows = "| lease | lease (Chubby) | how long | `base/a.h` |\n"
        self.assertEqual(check_glossary(tree_of({"docs/glossary.md": self.HEAD + rows, "base/a.h": ""})), [])
        self.assertEqual(places(check_glossary(tree_of({"docs/glossary.md": self.HEAD + rows}))), [("docs/glossary.md", 3)])

    def test_a_row_has_a_term_of_the_literature(self):
        rows = "| lease | | how long | `base/a.h` |\n| seat | `base/a.h` |\n"
        found = check_glossary(tree_of({"docs/glossary.md": self.HEAD + rows, "base/a.h": ""}))
        self.assertEqual(places(found), [("docs/glossary.md", 3), ("docs/glossary.md", 4)])

    def test_the_page_is_there(self):
        self.assertEqual(places(check_glossary(tree_of({}))), [("docs/glossary.md", 1)])


class Whitespace(unittest.TestCase):
    def test_line_ends_and_the_last_newline(self):
        self.assertEqual(places(check_whitespace(tree_of({"a.md": "x \ny"}, page="x\n"))), [("a.md", 2), ("a.md", 1)])
        self.assertEqual(check_whitespace(tree_of({"a.md": "x\ny\n"}, page="x\n")), [])


class Columns(unittest.TestCase):
    def test_the_limit_itself_is_lawful(self):
        self.assertEqual(check_columns(tree_of({"base/a.h": "x" * 100 + "\n"})), [])
        self.assertEqual(places(check_columns(tree_of({"base/a.h": "\n" + "x" * 101 + "\n"}))), [("base/a.h", 2)])

    def test_a_comment_is_found(self):
        for text in ["// " + "word " * 20 + "end", "int x;  // " + 'says "so" ' * 10, "/* " + "word " * 20 + "*/"]:
            self.assertEqual(places(check_columns(tree_of({"base/a.h": text + "\n"}))), [("base/a.h", 1)], text)

    def test_a_string_literal_may_run_on(self):
        for text in ['const char* kText = "' + "y" * 90 + '";', 'auto text = R"(' + '{"y":1}' * 20 + ')";', 'auto text = R"(a\n' + "y" * 120 + '\n)";']:
            self.assertEqual(check_columns(tree_of({"base/a.cpp": text + "\n"})), [], text)

    def test_what_follows_a_string_literal_does_not(self):
        for text in ['Say("short", ' + "y" * 90 + ");", 'Say(R"(short)", ' + "y" * 90 + ");", 'Say("' + "y" * 90 + '", 1, 2, 3);']:
            self.assertEqual(places(check_columns(tree_of({"base/a.cpp": text + "\n"}))), [("base/a.cpp", 1)], text)

    def test_only_cpp_has_the_limit(self):
        self.assertEqual(check_columns(tree_of({"docs/a.md": "x" * 140 + "\n"}, page="x\n")), [])


if __name__ == "__main__":
    unittest.main()
