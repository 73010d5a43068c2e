import { expect, test } from "vitest";
import { sizeText } from "../catalog/prompts";
import { commented } from "./comments";
import { candidates, completed, unfinishedAt } from "./completion";

test("P1.19 names are completed only where a prompt may contain them", () => {
  const at = (text: string) => unfinishedAt(text, text.length);
  expect(at("a star, embedding:gla")).toEqual({ kind: "embeddings", part: "gla", from: 18 });
  expect(at("(embedding:")).toEqual({ kind: "embeddings", part: "", from: 11 });
  expect(at("a <lora:sty")).toEqual({ kind: "loras", part: "sty", from: 8 });
  for (const none of ["noembedding:a", "embedding:a b", "<lora:a:1", "<lora:a>", ""])
    expect(at(none)).toBeNull();
  expect(unfinishedAt("embedding:ab cd", 11)).toEqual({ kind: "embeddings", part: "a", from: 10 });
});

test("P1.19 names that begin with the typed text come first", () => {
  expect(candidates("GL", ["my_glass", "gloss", "matte", "glass"])).toEqual([
    "gloss",
    "glass",
    "my_glass",
  ]);
  expect(candidates("", [..."abcdefghijkl"])).toHaveLength(8);
});

test("P1.19 a completed LoRA gets a strength, which is selected; an existing one stays", () => {
  const choose = (text: string, name: string) => {
    const unfinished = unfinishedAt(text, text.includes("|") ? text.indexOf("|") : text.length);
    if (unfinished === null) throw new Error(text);
    return completed(text.replace("|", ""), unfinished, name);
  };
  const made = choose("a <lora:st| star", "style");
  expect(made.text).toBe("a <lora:style:1> star");
  expect(made.text.slice(made.start, made.end)).toBe("1");
  expect(choose("a <lora:st|:0.5> star", "style").text).toBe("a <lora:style:0.5> star");
  expect(choose("embedding:g", "glass")).toEqual({ text: "embedding:glass", start: 15, end: 15 });
});

test("P1.19 selected lines are commented out and uncommented", () => {
  const out = commented({ text: "a\nb\nc", start: 2, end: 5 });
  expect(out).toEqual({ text: "a\n// b\n// c", start: 2, end: 11 });
  expect(commented(out)).toEqual({ text: "a\nb\nc", start: 2, end: 5 });
  expect(commented({ text: "red", start: 1, end: 1 })).toEqual({
    text: "// red",
    start: 4,
    end: 4,
  });
});

test("P1.19 the token count of a prompt is formatted", () => {
  const clip = { encoder: "CLIP", tokens: 12, chunks: 1, most: 75 };
  const t5 = { encoder: "T5", tokens: 14, chunks: 0, most: 0 };
  expect(sizeText([])).toBe("");
  expect(sizeText([clip])).toBe("12 of 75 tokens");
  expect(sizeText([{ ...clip, tokens: 81, chunks: 2 }])).toBe("81 tokens, 2 chunks of 75");
  expect(sizeText([{ ...t5, tokens: 1 }])).toBe("1 token");
  expect(sizeText([{ ...t5, most: 8 }])).toBe("14 tokens, 8 are read");
  expect(sizeText([clip, t5])).toBe("CLIP: 12 of 75 tokens; T5: 14 tokens");
});
