/**
 * Removes and toggles comments in prompts: from `//` to the end of the line, or as in CSS. The
 * server does not receive them. Pure.
 */
import type { Selected } from "./weights";

const COMMENT = /\/\*[\s\S]*?\*\/|\/\/.*/g;
const MARK = /^([ \t]*)\/\/ ?/;

export function withoutComments(text: string): string {
  return text.replaceAll(COMMENT, "");
}

/** Comments out the selected lines, or uncomments them if all are comments. */
export function commented({ text, start, end }: Selected): Selected {
  const from = text.lastIndexOf("\n", start - 1) + 1;
  const next = text.indexOf("\n", Math.max(end, from));
  const to = next < 0 ? text.length : next;
  const lines = text.slice(from, to).split("\n");
  const out = lines.every((line) => MARK.test(line));
  const made = lines.map((line) => (out ? line.replace(MARK, "$1") : `// ${line}`)).join("\n");
  const whole = start !== end;
  const cursor = Math.max(from, end + made.length - (to - from));
  return {
    text: text.slice(0, from) + made + text.slice(to),
    start: whole ? from : cursor,
    end: whole ? from + made.length : cursor,
  };
}
