import { expect, test } from "vitest";
import { lookOf, parsed, printed, propertiesOf, unreadable, DEFAULT_LOOK } from "./look";

test("P1.26 a stored look is limited to known variables, colours and sizes", () => {
  const colours = { "dark-accent": "#F0A", "light-nothing": "#111111", "light-back": "red" };
  expect(lookOf({ text: 99, colours })).toEqual({
    text: 20,
    colours: { "dark-accent": "#ff00aa" },
  });
  expect(lookOf(null)).toEqual(DEFAULT_LOOK);
  expect(propertiesOf(DEFAULT_LOOK).get("--dark-accent")).toBe(""); // the property is removed again
});

test("P1.26 exported colours are imported unchanged, and invalid lines are reported", () => {
  const colours = { "dark-accent": "#ff8800", "light-text": "#101010" };
  expect(parsed(printed(colours))).toEqual({ colours, wrong: [] });
  expect(parsed("--dark-accent: url(x); --dark-back: #000\nnonsense")).toEqual({
    colours: { "dark-back": "#000000" },
    wrong: ["--dark-accent: url(x)", "nonsense"],
  });
});

test("P1.26 text with too little contrast is reported", () => {
  const holds = (scheme: string, name: string) =>
    scheme === "light" && name === "dim"
      ? "#dddddd"
      : /text|dim|bad|^accent/.test(name)
        ? "#000000"
        : "#ffffff";
  expect(unreadable(holds)).toEqual([
    "light: secondary text (dim) on nodes and panels (panel): 1.4 to 1, less than 4.5",
  ]);
});
