/** Changes graphs with pure functions that return the next graph. Unnamed parts stay unchanged. */
import { fieldsOf, isObject, type Json, type JsonObject, listOf } from "../json";
import { removeLinks } from "./links";
import { type Doc, idOf, type InputSlot, linksOf, nodesOf } from "./model";
import { counted, lastOf, withNodes } from "./raw";
import { boundariesOf } from "./scope";

export interface Place {
  readonly x: number;
  readonly y: number;
}

export function moveNodes(graph: Doc, places: ReadonlyMap<string, Place>): Doc {
  const moved = withNodes(graph, (raw) => {
    const place = places.get(idOf(raw.id));
    return place === undefined ? raw : { ...raw, pos: [place.x, place.y] };
  });
  return boundariesOf(graph).reduce<Doc>((next, { id, side }) => {
    const [place, key] = [places.get(id), side === "inputs" ? "inputNode" : "outputNode"] as const;
    const raw = next[key];
    if (place === undefined || !isObject(raw)) return next;
    const bounding = [place.x, place.y, ...listOf(raw.bounding).slice(2)];
    return { ...next, [key]: { ...raw, bounding } };
  }, moved);
}

/**
 * Sets the value of a widget. `key`: its index in the values, or its name if the node stores values
 * by name. `name` also updates the named values that newer files contain.
 */
export function setValue(
  graph: Doc,
  node: string,
  key: number | string,
  value: Json,
  name = "",
): Doc {
  return changeNode(graph, node, (raw) => {
    const named = raw.widgets_values_named;
    const also: JsonObject =
      isObject(named) && name !== "" ? { widgets_values_named: { ...named, [name]: value } } : {};
    if (isObject(raw.widgets_values))
      return { ...raw, ...also, widgets_values: { ...raw.widgets_values, [key]: value } };
    const values = [...listOf(raw.widgets_values)];
    values[Number(key)] = value;
    return { ...raw, ...also, widgets_values: values };
  });
}

export function setMode(graph: Doc, nodes: ReadonlySet<string>, mode: number): Doc {
  return changeNodes(graph, nodes, (raw) => ({ ...raw, mode }));
}

/** Collapses or pins nodes, or undoes that. */
export function setFlag(
  graph: Doc,
  nodes: ReadonlySet<string>,
  flag: "collapsed" | "pinned",
  on: boolean,
): Doc {
  return changeNodes(graph, nodes, (raw) => {
    const { [flag]: _, ...flags } = fieldsOf(raw.flags);
    return { ...raw, flags: on ? { ...flags, [flag]: true } : flags };
  });
}

/** Sets title colours; "" for the theme's colour. */
export function setColour(graph: Doc, nodes: ReadonlySet<string>, colour: string): Doc {
  return changeNodes(graph, nodes, ({ color: _, bgcolor: __, ...raw }) =>
    colour === "" ? raw : { ...raw, color: colour },
  );
}

export function setTitle(graph: Doc, node: string, title: string): Doc {
  return changeNode(graph, node, (raw) => ({ ...raw, title }));
}

export function resizeNode(graph: Doc, node: string, width: number, height: number): Doc {
  return changeNode(graph, node, (raw) => ({ ...raw, size: [width, height] }));
}

/** Adds an input of the node's type that the file does not list, for example for a widget. */
export function addInput(graph: Doc, node: string, input: Omit<InputSlot, "label">): Doc {
  const { name, type, widget } = input;
  const made = { name, type, link: null, ...(widget === null ? {} : { widget: { name: widget } }) };
  return changeNode(graph, node, (raw) => ({ ...raw, inputs: [...listOf(raw.inputs), made] }));
}

export function addNode(graph: Doc, node: JsonObject): Doc {
  const numbers = nodesOf(graph).map(({ id }) => Number(id));
  const id = Math.max(lastOf(graph, "node"), ...numbers.filter(Number.isSafeInteger)) + 1;
  const order = listOf(graph.nodes).length;
  return {
    ...counted(graph, "node", id),
    nodes: [...listOf(graph.nodes), { ...node, id, order }],
  };
}

export function removeNodes(graph: Doc, nodes: ReadonlySet<string>): Doc {
  const gone = linksOf(graph).filter((link) => nodes.has(link.from) || nodes.has(link.to));
  const cut = removeLinks(graph, new Set(gone.map((link) => link.id)));
  return {
    ...cut,
    nodes: listOf(cut.nodes).filter((raw) => !(isObject(raw) && nodes.has(idOf(raw.id)))),
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

function changeNodes(
  graph: Doc,
  nodes: ReadonlySet<string>,
  change: (raw: JsonObject) => JsonObject,
): Doc {
  return withNodes(graph, (raw) => (nodes.has(idOf(raw.id)) ? change(raw) : raw));
}

export function changeNode(graph: Doc, node: string, change: (raw: JsonObject) => JsonObject): Doc {
  return changeNodes(graph, new Set([node]), change);
}
