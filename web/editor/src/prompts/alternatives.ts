/**
 * Chooses among the alternatives `{a|b}` of a prompt. A backslash escapes a bracket or bar. Pure.
 * The server has the same rule (`katz_graph/formats/front_end/prompt_text.py`); one table of cases
 * tests both.
 */

interface Group {
  end: number;
  readonly bars: number[];
}

/** Returns the index of the chosen alternative, below `count`. */
export type Pick = (count: number) => number;

const anyOf: Pick = (count) => Math.floor(Math.random() * count);

/** Replaces each group by one of its alternatives. Backslashes stay; the server interprets them. */
export function chosen(text: string, pick: Pick = anyOf): string {
  const groups = groupsOf(text);
  const pending: [number, number][] = [[0, text.length]];
  let made = "";
  for (let range = pending.pop(); range !== undefined; range = pending.pop()) {
    let [at, end] = range;
    while (at < end) {
      const group = groups.get(at);
      if (group === undefined) {
        const width = text[at] === "\\" ? 2 : 1;
        made += text.slice(at, Math.min(at + width, end));
        at += width;
        continue;
      }
      pending.push([group.end + 1, end]);
      const edges = [at, ...group.bars, group.end];
      const one = pick(edges.length - 1);
      [at, end] = [(edges[one] ?? at) + 1, edges[one + 1] ?? end];
    }
  }
  return made;
}

/**
 * Returns the groups of a text by the position of their opening bracket. An unclosed group ends
 * with the text.
 */
function groupsOf(text: string): ReadonlyMap<number, Group> {
  const groups = new Map<number, Group>();
  const opened: Group[] = [];
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (sign === "\\") at++;
    else if (sign === "{") {
      const group = { end: text.length, bars: [] };
      groups.set(at, group);
      opened.push(group);
    } else if (sign === "}") {
      const closed = opened.pop();
      if (closed !== undefined) closed.end = at;
    } else if (sign === "|") opened.at(-1)?.bars.push(at);
  }
  return groups;
}
