/** Creates, moves, renames, colours and removes groups around nodes. */
import { isObject, type JsonObject, listOf } from "../json";
import { moveNodes, type Place } from "./commands";
import { type Doc, type DocGroup, type DocNode, groupsOf, nodesOf } from "./model";

const MARGIN = 24;
const TITLE = 60;

/** Adds a group around nodes. */
export function addGroup(graph: Doc, nodes: ReadonlySet<string>, title: string): Doc {
  const inside = nodesOf(graph).filter(({ id }) => nodes.has(id));
  if (inside.length === 0) return graph;
  const left = Math.min(...inside.map(({ x }) => x)) - MARGIN;
  const top = Math.min(...inside.map(({ y }) => y)) - TITLE;
  const right = Math.max(...inside.map(({ x, width }) => x + width)) + MARGIN;
  const bottom = Math.max(...inside.map(({ y, height }) => y + height)) + MARGIN;
  const group = { title, bounding: [left, top, right - left, bottom - top], color: "#3f6f9f" };
  return { ...graph, groups: [...listOf(graph.groups), group] };
}

export function changeGroup(
  graph: Doc,
  number: number,
  change: { readonly title?: string; readonly colour?: string },
): Doc {
  const { title, colour } = change;
  return withGroup(graph, number, (raw) => ({
    ...raw,
    ...(title === undefined ? {} : { title }),
    ...(colour === undefined ? {} : { color: colour }),
  }));
}

export function resizeGroup(
  graph: Doc,
  number: number,
  box: Omit<DocGroup, "title" | "colour">,
): Doc {
  const bounding = [box.x, box.y, box.width, box.height];
  return withGroup(graph, number, (raw) => ({ ...raw, bounding }));
}

/** Removes a group and leaves its nodes. */
export function removeGroup(graph: Doc, number: number): Doc {
  return { ...graph, groups: listOf(graph.groups).filter((_, place) => place !== number) };
}

/** Returns the nodes whose centre is inside a group. */
export function within(graph: Doc, group: DocGroup): readonly DocNode[] {
  return nodesOf(graph).filter(({ x, y, width, height }) => {
    const [middle, centre] = [x + width / 2, y + height / 2];
    return (
      middle >= group.x &&
      middle <= group.x + group.width &&
      centre >= group.y &&
      centre <= group.y + group.height
    );
  });
}

/** Moves a group and the nodes inside it. */
export function moveGroup(graph: Doc, number: number, to: Place): Doc {
  const group = groupsOf(graph)[number];
  if (group === undefined) return graph;
  const [right, down] = [to.x - group.x, to.y - group.y];
  const places = within(graph, group).map(
    (node) => [node.id, { x: node.x + right, y: node.y + down }] as const,
  );
  return resizeGroup(moveNodes(graph, new Map(places)), number, { ...group, ...to });
}

function withGroup(graph: Doc, number: number, change: (raw: JsonObject) => JsonObject): Doc {
  const groups = listOf(graph.groups).map((raw, place) =>
    place === number && isObject(raw) ? change(raw) : raw,
  );
  return { ...graph, groups };
}
