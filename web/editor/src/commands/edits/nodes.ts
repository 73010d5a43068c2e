/** Edits the selection in the graph in view. */
import { reached } from "../../catalog/connections";
import { copied, pasted } from "../../document/clipboard";
import {
  moveNodes,
  type Place,
  removeNodes,
  setColour,
  setFlag,
  setMode,
} from "../../document/commands";
import { addGroup, changeGroup, removeGroup } from "../../document/groups";
import { arranged } from "../../document/layout/arrange";
import { removeLinks } from "../../document/links";
import { type Doc, type DocNode, nodesOf } from "../../document/model";
import { removeReroute } from "../../document/reroutes";
import { useCanvas } from "../../state/canvas";
import { activeSession, graphOf, useDocuments } from "../../state/documents";
import { notify } from "../../state/live";
import { usePage } from "../../state/page";
import { nameLink } from "./hiddenLinks";
import { change, onNodes, selection } from "./selection";

const POINT = "point:";

function all(graph: Doc, nodes: ReadonlySet<string>, are: (node: DocNode) => boolean): boolean {
  return nodesOf(graph)
    .filter(({ id }) => nodes.has(id))
    .every(are);
}

export function toggleMode(mode: number, label: string): void {
  onNodes((graph, nodes) => {
    const next = all(graph, nodes, (node) => node.mode === mode) ? 0 : mode;
    change(label, (now) => setMode(now, nodes, next));
  });
}

export function toggleFlag(flag: "collapsed" | "pinned", label: string): void {
  onNodes((graph, nodes) => {
    const on = !all(graph, nodes, (node) => node[flag]);
    change(label, (now) => setFlag(now, nodes, flag, on));
  });
}

export function colour(value: string): void {
  const chosen = selection();
  if (chosen === null) return;
  change("colour", (now) =>
    chosen.groups.reduce(
      (next, number) => changeGroup(next, number, { colour: value }),
      setColour(now, chosen.nodes, value),
    ),
  );
}

export function remove(): void {
  const chosen = selection();
  if (chosen === null) return;
  const nodes = new Set(
    nodesOf(chosen.graph).flatMap(({ id }) => (chosen.nodes.has(id) ? [id] : [])),
  );
  const points = [...chosen.nodes].filter((id) => id.startsWith(POINT));
  const { links } = useCanvas.getState();
  const things = nodes.size + points.length + chosen.groups.length;
  if (things + links.size === 0) return;
  change(things > 0 ? "delete" : "cut a link", (now) =>
    points.reduce(
      (next, id) => removeReroute(next, Number(id.slice(POINT.length))),
      chosen.groups.reduce(
        removeGroup,
        removeNodes(removeLinks(now, new Set([...links].map(Number))), nodes),
      ),
    ),
  );
}

export function group(): void {
  onNodes((_, nodes) => change("group", (now) => addGroup(now, nodes, "group")));
}

export async function copy(cut: boolean): Promise<void> {
  const chosen = selection();
  if (chosen === null || chosen.nodes.size === 0) return;
  try {
    await navigator.clipboard.writeText(copied(chosen.graph, chosen.nodes));
  } catch {
    return notify("the browser does not let this page write to the clipboard");
  }
  if (cut) change("cut", (now) => removeNodes(now, chosen.nodes));
}

export async function paste(): Promise<void> {
  try {
    insert(await navigator.clipboard.readText(), useCanvas.getState().pointer(), "paste");
  } catch {
    notify("the browser does not let this page read the clipboard; press Ctrl+V");
  }
}

/** Adds a copy of the selected nodes next to them. */
export function duplicate(): void {
  onNodes((graph, nodes) => {
    const chosen = nodesOf(graph).filter(({ id }) => nodes.has(id));
    const [left, top] = [
      Math.min(...chosen.map(({ x }) => x)),
      Math.min(...chosen.map(({ y }) => y)),
    ];
    insert(copied(graph, nodes), { x: left + 32, y: top + 32 }, "duplicate");
  });
}

/**
 * Pastes copied nodes at a position and selects them. Returns false if the text has no copied
 * nodes.
 */
export function insert(text: string, { x, y }: Place, label: string): boolean {
  const session = activeSession();
  const made = session && pasted(graphOf(session), text, Math.round(x), Math.round(y));
  if (!made) return false;
  change(label, () => made.doc);
  requestAnimationFrame(() => useCanvas.getState().select(new Set(made.ids)));
  return true;
}

/** Moves the selected nodes by a step; consecutive steps form one gesture. */
export function nudge(right: number, down: number): void {
  const chosen = selection();
  const session = activeSession();
  if (chosen === null || session === null || chosen.nodes.size === 0) return;
  const places = nodesOf(chosen.graph)
    .filter(({ id, pinned }) => chosen.nodes.has(id) && !pinned)
    .map(({ id, x, y }) => [id, { x: x + right, y: y + down }] as const);
  useDocuments
    .getState()
    .change(
      session.id,
      "move",
      (graph) => moveNodes(graph, new Map(places)),
      `nudge ${[...chosen.nodes].join()}`,
    );
}

export function selectAll(): void {
  const chosen = selection();
  if (chosen !== null)
    useCanvas.getState().select(new Set(nodesOf(chosen.graph).map(({ id }) => id)));
}

export function selectAlong(way: "upstream" | "downstream"): void {
  onNodes((graph, nodes) => useCanvas.getState().select(reached(graph, nodes, way)));
}

export function arrange(): void {
  const chosen = selection();
  if (chosen === null) return;
  const sizes = useCanvas.getState().sizes();
  const places = arranged(
    chosen.graph,
    chosen.nodes,
    ({ id, height }) => sizes.get(id)?.height ?? height,
  );
  change("arrange", (now) => moveNodes(now, places));
  if (chosen.nodes.size === 0) requestAnimationFrame(() => useCanvas.getState().fit());
}

export function rename(): void {
  const { selected, links } = useCanvas.getState();
  const [first] = selected;
  if (first === undefined && links.size > 0) return nameLink();
  useCanvas.setState({ renaming: first ?? null });
}

/** Leaves the opened step or the subgraph in view; otherwise clears the selection. */
export function leave(): void {
  if (usePage.getState().step !== null) return usePage.setState({ step: null });
  const session = activeSession();
  if (session === null) return;
  if (session.path.length === 0) return useCanvas.getState().select(new Set());
  useDocuments.getState().update(session.id, { path: session.path.slice(0, -1) });
}
