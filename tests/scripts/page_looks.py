"""What a browser shows of a page, measured: words that cover one another, anything that is cut, and pixels that are not what was drawn."""

import glob
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.extend(glob.glob(os.path.join(os.environ.get("TIDEPOOL_DEPS", os.path.join(ROOT, ".deps")), "venv/lib/python3*/site-packages")))

import html5lib  # noqa: E402: of scripts/setup --tests

WIDTHS = (420, 1240, 3840)

# Every piece of text that can be seen: [words, left, top, right, bottom], without those that a reader scrolls to.
TEXTS = """(() => {
  const seen = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement, words = node.data.trim();
    if (!words || !parent.checkVisibility() || parent.closest("title, desc, style, script, noscript, .scroll")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = parent.namespaceURI.endsWith("svg") ? [parent.getBoundingClientRect()] : [...range.getClientRects()];
    for (const box of boxes) if (box.width > 0) seen.push([words, box.left, box.top, box.right, box.bottom]);
  }
  return seen;
})()"""

# With the screenshot as a picture: how many pixels of the outermost columns differ from the page's corner, and where a cell of a stripe is not of
# the colour that it was given.
PIXELS = """(async (shot) => {
  const image = new Image();
  image.src = "data:image/png;base64," + shot;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const all = context.getImageData(0, 0, image.width, image.height).data, at = (x, y) => [...all.slice(4 * (y * image.width + x), 4 * (y * image.width + x) + 3)].join();
  const ground = at(0, image.height - 1);
  let cut = 0, cells = 0;
  for (const x of [0, 1, 2, image.width - 3, image.width - 2, image.width - 1])
    for (let y = 0; y < image.height; ++y) cut += at(x, y) !== ground;
  const wrong = [];
  for (const rect of document.querySelectorAll(".stripe > rect[class^='ink-']")) {
    const box = rect.getBoundingClientRect(), y = Math.round(box.top) + 2, x = Math.round(box.left + Math.min(box.width, 12) / 2);
    if (box.width < 6 || box.height < 10 || y >= image.height || x >= image.width) continue;
    ++cells;
    const wanted = getComputedStyle(rect).fill.match(/[0-9]+/g).slice(0, 3).join();
    if (at(x, y) !== wanted) wrong.push([rect.getAttribute("class"), wanted, at(x, y)]);
  }
  return { cut, cells, wrong, wide: image.width };
})"""


def overlaps(texts):
    """Pairs of texts that share more than a pixel in both directions (letters reach that far above and below what is drawn of them)."""
    found = []
    for i, (words, left, top, right, bottom) in enumerate(texts):
        for other, left2, top2, right2, bottom2 in texts[i + 1:]:
            if min(right, right2) - max(left, left2) > 1 and min(bottom, bottom2) - max(top, top2) > 3:
                found.append((words, other, round(left), round(top)))
    return found


def check(test, browser, name):
    """At each width: nothing covers anything else, nothing is cut at a side, and stripes have the colours of their states."""
    height = browser.evaluate("Math.ceil(document.documentElement.scrollHeight)")
    for width in WIDTHS:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=min(max(height, 800), 3000), deviceScaleFactor=1, mobile=False)
        browser.wait_for(f"window.innerWidth === {width}")
        with test.subTest(page=name, width=width):
            test.assertLessEqual(browser.evaluate("document.documentElement.scrollWidth"), width, "nothing reaches beyond the side")
            texts = browser.evaluate(TEXTS)
            test.assertGreater(len(texts), 10)
            test.assertEqual(overlaps(texts), [])
            test.assertEqual([text for text in texts if text[1] < 0 or text[3] > width], [], "no word is cut")
            found = browser.evaluate(f"{PIXELS}('{browser.picture()}')")
            test.assertEqual((found["cut"], found["wrong"], found["wide"]), (0, [], width))
            test.assertGreater(found["cells"], 0)
    browser.call("Emulation.setDeviceMetricsOverride", width=1240, height=1400, deviceScaleFactor=1, mobile=False)


def check_html(test, text):
    """The parser of the HTML standard finds nothing wrong, and no two elements have one name."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(text)
    test.assertEqual(parser.errors, [])
    names = [element.get("id") for element in tree.iter() if element.get("id")]
    test.assertEqual(len(names), len(set(names)))
    test.assertTrue(tree.get("lang") and tree.find("head/title").text)
    test.assertEqual([element.tag for element in tree.iter("script") if not element.get("src")], [])
    for picture in tree.iter("{http://www.w3.org/2000/svg}svg"):
        test.assertTrue(picture.get("aria-label") or picture.get("aria-hidden") or picture.get("role") is None)
