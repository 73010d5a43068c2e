import { expect, test } from "vitest";
import { parsedColour, pickedOf, valueOf } from "./colours";

test("P0.24 typed colours are read, and all other text is refused", () => {
  expect(["#FFAA00", "ffaa00", " #fa0 ", "#ffaa0080"].map(parsedColour)).toEqual([
    "#ffaa00",
    "#ffaa00",
    "#fa0",
    "#ffaa0080",
  ]);
  for (const wrong of ["", "red", "#ffaa", "url(x)", "#ffaa00;", "rgb(1,2,3)"])
    expect(parsedColour(wrong)).toBeNull();
});

test("P0.24 a picked colour keeps the format of the value, and its opacity", () => {
  expect(["#fa0", "#ffaa0080", 0xffaa00, 255, 0n].map(pickedOf)).toEqual([
    "#ffaa00",
    "#ffaa00",
    "#ffaa00",
    "#0000ff",
    "#000000",
  ]);
  for (const wrong of [-1, 0x1000000, 1.5, "red", null, true]) expect(pickedOf(wrong)).toBeNull();
  expect(valueOf("#010203", 7)).toBe(0x010203);
  expect(valueOf("#010203", "#ffffff80")).toBe("#01020380");
  expect(valueOf("#010203", "#fff")).toBe("#010203");
});
