/** Resolves handles to inputs and outputs, and links them. */
import { addInput } from "../document/commands";
import { connect } from "../document/links";
import { type Doc, type DocLink, type DocNode, linksOf, nodesOf } from "../document/model";
import { boundariesOf } from "../document/scope";
import { type Catalog, compatible, type NodeType, offered, type Socket, socketOf } from "./catalog";
import { refusal } from "./connections";
import { inputHelp, socketHelp, widgetHelp } from "./help";
import { placedWidgets, shownWidgets } from "./placed";

export interface Output {
  readonly node: string;
  readonly slot: number;
  readonly type: string;
}

/** An input of a node. Its slot is null if the file does not list the input yet. */
export interface Input {
  readonly node: string;
  readonly slot: number | null;
  readonly name: string;
  readonly type: string;
  readonly widget: string | null;
  /** Whether the node runs without this input. */
  readonly optional: boolean;
  readonly help: string;
}

/**
 * Returns the inputs of a node: those in the file, then the others of its type. Of a growing group:
 * the linked ones, the required ones, and the first free one. Of a choice: those of its current
 * value, and linked ones.
 */
export function inputsOf(node: DocNode, type: NodeType | undefined): readonly Input[] {
  const wired = new Set(node.inputs.flatMap(({ name, link }) => (link === null ? [] : [name])));
  const shown = type === undefined ? [] : shownSockets(node, type, wired);
  const names = new Set(shown.map(({ name }) => name));
  const may = new Set(shown.flatMap((one) => (one.optional ? [one.name] : [])));
  const hidden = new Set(type?.sockets.flatMap(({ name }) => (names.has(name) ? [] : [name])));
  const listed = node.inputs.map((input, slot): Input => {
    const help = inputHelp(type, input.name, input.type);
    return { ...input, node: node.id, slot, optional: may.has(input.name), help };
  });
  const known = new Set(node.inputs.map(({ name }) => name));
  const widgets = type?.isVirtual
    ? []
    : (type === undefined ? [] : shownWidgets(node, type)).filter(({ name }) => !known.has(name));
  return [
    ...listed.filter(({ name }) => !hidden.has(name)),
    ...shown
      .filter(({ name }) => !known.has(name))
      .map((socket): Input => {
        const { name, type: taken, optional } = socket;
        const help = socketHelp(socket);
        return { node: node.id, slot: null, name, type: taken, widget: null, optional, help };
      }),
    ...widgets.map((widget): Input => {
      const { name } = widget;
      const type = socketOf(widget);
      const help = widgetHelp(widget);
      return { node: node.id, slot: null, name, type, widget: name, optional: true, help };
    }),
  ];
}

/** Returns the sockets that a node shows, without those of other values of its choices. */
function shownSockets(
  node: DocNode,
  type: NodeType,
  wired: ReadonlySet<string>,
): readonly Socket[] {
  const placed = placedWidgets(node, type);
  const values = new Map(placed.map(({ widget, value }) => [widget.name, value]));
  return offered(type, wired).filter(({ name, shownFor }) => {
    if (shownFor === null || wired.has(name) || placed.length === 0) return true;
    return shownFor.values.some((value) => value === values.get(shownFor.choice));
  });
}

/** Returns the handle id of an input, by its slot or, without a slot, by its name. */
export function handleOf({ slot, name }: Pick<Input, "slot" | "name">): string {
  return slot === null ? `new:${name}` : `in:${slot}`;
}

export function outputAt(graph: Doc, id: string, handle: string | null | undefined): Output | null {
  const slot = Number(handle?.split(":")[1]);
  const outputs =
    nodesOf(graph).find((node) => node.id === id)?.outputs ??
    boundariesOf(graph).find((one) => one.id === id && one.side === "inputs")?.slots;
  const found = outputs?.[slot];
  return found === undefined ? null : { node: id, slot, type: found.type };
}

export function inputAt(
  graph: Doc,
  catalog: Catalog,
  id: string,
  handle: string | null | undefined,
): Input | null {
  const boundary = boundariesOf(graph).find((one) => one.id === id && one.side === "outputs");
  const ends =
    boundary === undefined
      ? inputsOfId(graph, catalog, id)
      : boundary.slots.map((slot, number): Input => {
          return {
            ...slot,
            node: id,
            slot: number,
            widget: null,
            optional: false,
            help: slot.type,
          };
        });
  return ends.find((end) => handleOf(end) === handle) ?? null;
}

/**
 * Returns the input for a link dropped on a node's body: a free compatible one, else any compatible
 * one.
 */
export function fittingInput(graph: Doc, catalog: Catalog, id: string, from: Output): Input | null {
  const taken = new Set(linksOf(graph).flatMap(({ to, toSlot }) => (to === id ? [toSlot] : [])));
  const fits = inputsOfId(graph, catalog, id).filter((end) => compatible(from.type, end.type));
  const wires = fits.filter(({ widget }) => widget === null);
  return wires.find(({ slot }) => slot === null || !taken.has(slot)) ?? wires[0] ?? fits[0] ?? null;
}

export function whyNot(graph: Doc, from: Output, to: Input): string | null {
  return refusal(graph, from, { node: to.node, slot: to.slot ?? -1, type: to.type });
}

export function linked(graph: Doc, from: Output, to: Input): Doc {
  const { graph: ready, slot } = listed(graph, to);
  return connect(ready, from, { node: to.node, slot }, from.type);
}

/** Adds an input of the node's type to its list in the file, if missing. */
export function listed(graph: Doc, to: Input): { readonly graph: Doc; readonly slot: number } {
  if (to.slot !== null) return { graph, slot: to.slot };
  const ready = addInput(graph, to.node, { ...to, link: null });
  const slots = nodesOf(ready).find(({ id }) => id === to.node)?.inputs.length ?? 0;
  return { graph: ready, slot: slots - 1 };
}

function inputsOfId(graph: Doc, catalog: Catalog, id: string): readonly Input[] {
  const node = nodesOf(graph).find((one) => one.id === id);
  return node === undefined ? [] : inputsOf(node, catalog.get(node.type));
}

/** Returns the type of a link's target input, which may be on a subgraph's boundary. */
export function inputType(graph: Doc, { to, toSlot, type }: DocLink): string {
  const slots =
    nodesOf(graph).find(({ id }) => id === to)?.inputs ??
    boundariesOf(graph).find(({ id, side }) => id === to && side === "outputs")?.slots;
  return slots?.[toSlot]?.type ?? type;
}
