import { expect, test } from "vitest";
import { catalogOf } from "./catalog";
import { inputHelp, outputHelp } from "./help";

const type = catalogOf({
  Mix: {
    input: {
      required: {
        image: ["IMAGE", { tooltip: "the picture below" }],
        share: ["FLOAT", { default: 0.5, min: 0, max: 1, tooltip: "<b>how much</b> of it" }],
        seed: ["INT", { default: 0, min: 0, max: 18446744073709551615n }],
        deep: ["BOOLEAN", { default: true }],
        kind: [["a", "b"], {}],
      },
      optional: { mask: ["MASK", {}] },
    },
    output: ["IMAGE"],
    output_tooltips: ["both in one"],
  },
}).get("Mix");

test("P0.03 help of an input shows its tooltip and accepted values", () => {
  const help = (name: string) => inputHelp(type, name, "?");
  expect(help("image")).toBe("the picture below\nIMAGE");
  expect(help("share")).toBe("<b>how much</b> of it\na number from 0 to 1; default 0.5");
  expect(help("seed")).toBe("a whole number from 0 to 18446744073709551615; default 0");
  expect(help("deep")).toBe("yes or no; default yes");
  expect(help("kind")).toBe("one of 2");
  expect(help("mask")).toBe("MASK, optional");
  expect(help("no such")).toBe("?");
  expect(inputHelp(undefined, "image", "IMAGE")).toBe("IMAGE");
  expect(outputHelp(type, 0, "?")).toBe("both in one\nIMAGE");
  expect(outputHelp(type, 1, "?")).toBe("?");
});
