/**
 * Chooses among the alternatives `{a|b}` of a prompt. A backslash makes a bracket or bar plain. Pure.
 * The server has the same rule (`katz_graph/formats/front_end/prompt_text.py`), and one table of
 * cases holds both.
 */

interface Group {
  end: number;
  readonly bars: number[];
}

/** Gives a number below the given one: which of so many alternatives is taken. */
export type Pick = (count: number) => number;

const anyOf: Pick = (count) => Math.floor(Math.random() * count);

/** Replaces each group by one of its parts. Backslashes stay: the server takes them for what they mean. */
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

/** The groups of a text by the places of their opening brackets; one that is not closed ends with it. */
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
