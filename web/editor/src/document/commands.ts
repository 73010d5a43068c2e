/** Changes documents: pure functions from one to the next. What they do not name stays as it is. */
import { isObject, type Json, type JsonObject, listOf, numberFrom } from "../json";
import { type Doc, idOf, linksOf, nodesOf } from "./model";

export interface Place {
  readonly x: number;
  readonly y: number;
}

export interface End {
  readonly node: string;
  readonly slot: number;
}

export function moveNodes(doc: Doc, places: ReadonlyMap<string, Place>): Doc {
  return withNodes(doc, (raw) => {
    const place = places.get(idOf(raw.id));
    return place === undefined ? raw : { ...raw, pos: [place.x, place.y] };
  });
}

/** `key`: the place among the values, or the name where a node keeps them by name. */
export function setValue(doc: Doc, node: string, key: number | string, value: Json): Doc {
  return withNodes(doc, (raw) => {
    if (idOf(raw.id) !== node) return raw;
    if (isObject(raw.widgets_values))
      return { ...raw, widgets_values: { ...raw.widgets_values, [key]: value } };
    const values = [...listOf(raw.widgets_values)];
    values[Number(key)] = value;
    return { ...raw, widgets_values: values };
  });
}

export function setMode(doc: Doc, nodes: ReadonlySet<string>, mode: number): Doc {
  return withNodes(doc, (raw) => (nodes.has(idOf(raw.id)) ? { ...raw, mode } : raw));
}

export function addNode(doc: Doc, node: JsonObject): Doc {
  const id = nextId(doc);
  return {
    ...counted(doc, "node", id),
    nodes: [...listOf(doc.nodes), { ...node, id, order: listOf(doc.nodes).length }],
  };
}

export function removeNodes(doc: Doc, nodes: ReadonlySet<string>): Doc {
  const gone = linksOf(doc).filter((link) => nodes.has(link.from) || nodes.has(link.to));
  const cut = removeLinks(doc, new Set(gone.map((link) => link.id)));
  return {
    ...cut,
    nodes: listOf(cut.nodes).filter((raw) => !(isObject(raw) && nodes.has(idOf(raw.id)))),
  };
}

/** Links an output to an input; what the input was linked to before is cut. */
export function connect(doc: Doc, from: End, to: End, type: string): Doc {
  const taken = linksOf(doc).filter((link) => link.to === to.node && link.toSlot === to.slot);
  const free = removeLinks(doc, new Set(taken.map((link) => link.id)));
  const id = Math.max(lastOf(doc, "link"), ...linksOf(doc).map((link) => link.id)) + 1;
  const [source, target] = [rawId(free, from.node), rawId(free, to.node)];
  const link: Json = isVersionOne(doc)
    ? {
        id,
        origin_id: source,
        origin_slot: from.slot,
        target_id: target,
        target_slot: to.slot,
        type,
      }
    : [id, source, from.slot, target, to.slot, type];
  const linked = withNodes(free, (raw) => {
    let node = raw;
    if (idOf(raw.id) === from.node)
      node = withSlot(node, "outputs", from.slot, (slot) => ({
        ...slot,
        links: [...listOf(slot.links), id],
      }));
    if (idOf(raw.id) === to.node)
      node = withSlot(node, "inputs", to.slot, (slot) => ({ ...slot, link: id }));
    return node;
  });
  return { ...counted(linked, "link", id), links: [...listOf(linked.links), link] };
}

/** Both ends of a link are told of it: all three places change here. */
export function removeLinks(doc: Doc, links: ReadonlySet<number>): Doc {
  if (links.size === 0) return doc;
  const nodes = withNodes(doc, (raw) => {
    const inputs = listOf(raw.inputs).map((slot) =>
      isObject(slot) && links.has(numberFrom(slot.link, Number.NaN))
        ? { ...slot, link: null }
        : slot,
    );
    const outputs = listOf(raw.outputs).map((slot) =>
      isObject(slot) && listOf(slot.links).some((id) => links.has(numberFrom(id)))
        ? { ...slot, links: listOf(slot.links).filter((id) => !links.has(numberFrom(id))) }
        : slot,
    );
    const same =
      inputs.every((slot, number) => slot === listOf(raw.inputs)[number]) &&
      outputs.every((slot, number) => slot === listOf(raw.outputs)[number]);
    return same ? raw : { ...raw, inputs, outputs };
  });
  return {
    ...nodes,
    links: listOf(nodes.links).filter((raw) => {
      const id = Array.isArray(raw) ? raw[0] : isObject(raw) ? raw.id : undefined;
      return !links.has(numberFrom(id, Number.NaN));
    }),
  };
}

export function emptyDocument(): Doc {
  return {
    last_node_id: 0,
    last_link_id: 0,
    nodes: [],
    links: [],
    groups: [],
    config: {},
    extra: {},
    version: 0.4,
  };
}

function isVersionOne(doc: Doc): boolean {
  const [first] = listOf(doc.links);
  return first === undefined ? numberFrom(doc.version) >= 1 : !Array.isArray(first);
}

function nextId(doc: Doc): number {
  const numbers = nodesOf(doc).map((node) => Number(node.id));
  return Math.max(lastOf(doc, "node"), ...numbers.filter(Number.isSafeInteger)) + 1;
}

const COUNTERS = {
  node: { plain: "last_node_id", inState: "lastNodeId" },
  link: { plain: "last_link_id", inState: "lastLinkId" },
} as const;

/** The highest id that was given; v1.0 keeps it in `state`. */
function lastOf(doc: Doc, kind: keyof typeof COUNTERS): number {
  const { plain, inState } = COUNTERS[kind];
  return Math.max(0, numberFrom(isObject(doc.state) ? doc.state[inState] : doc[plain]));
}

function counted(doc: Doc, kind: keyof typeof COUNTERS, id: number): Doc {
  const { plain, inState } = COUNTERS[kind];
  return isObject(doc.state)
    ? { ...doc, state: { ...doc.state, [inState]: id } }
    : { ...doc, [plain]: id };
}

function rawId(doc: Doc, id: string): Json {
  const raw = listOf(doc.nodes).find((node) => isObject(node) && idOf(node.id) === id);
  return isObject(raw) ? (raw.id ?? id) : id;
}

function withNodes(doc: Doc, change: (raw: JsonObject) => JsonObject): Doc {
  const before = listOf(doc.nodes);
  const after = before.map((raw) => (isObject(raw) ? change(raw) : raw));
  return after.every((raw, number) => raw === before[number]) ? doc : { ...doc, nodes: after };
}

function withSlot(
  node: JsonObject,
  side: "inputs" | "outputs",
  number: number,
  change: (slot: JsonObject) => JsonObject,
): JsonObject {
  const slots = listOf(node[side]).map((slot, place) =>
    place === number && isObject(slot) ? change(slot) : slot,
  );
  return { ...node, [side]: slots };
}
