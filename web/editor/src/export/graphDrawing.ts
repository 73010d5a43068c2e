/** Draws a graph as SVG: groups, links, and nodes with sockets and values. Pure. */
import type { Catalog } from "../catalog/catalog";
import type { Placed } from "../catalog/placed";
import { shownPlaced } from "../catalog/promoted";
import { socketColour } from "../catalog/sockets";
import { type Doc, type DocNode, groupsOf, linksOf, nodesOf } from "../document/model";
import { reroutesOf, throughOf } from "../document/reroutes";
import { boundariesOf, subgraphOf } from "../document/scope";
import { textOf } from "../json";
import { drawing, type Drawing, element, line, linesOf, type Paint } from "./svg";

const MARGIN = 40;
const TITLE = 30;
const ROW = 21;
const PAD = 10;
const LINES = 4;
const LINE = 16;
const MIN_WIDTH = 200;
const LABEL = 90;

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

interface Shape extends Box {
  readonly name: string;
  readonly colour: string;
  readonly inputs: readonly { readonly label: string; readonly type: string; readonly y: number }[];
  readonly outputs: Shape["inputs"];
  /** Widgets with the vertical position of their rows. */
  readonly values: readonly { readonly placed: Placed; readonly y: number }[];
}

/** `doc`: the document that contains the graph. */
export function graphDrawing(doc: Doc, graph: Doc, catalog: Catalog, paint: Paint): Drawing {
  const shapes = new Map<string, Shape>([
    ...nodesOf(graph).map((node) => [node.id, shapeOf(node, doc, catalog)] as const),
    ...boundariesOf(graph).map(({ id, side, x, y, slots }) => {
      const sockets = slots.map(({ name, type }, row) => ({ label: name, type, y: y + ROW * row }));
      const [inputs, outputs] = side === "inputs" ? [[], sockets] : [sockets, []];
      const box = { x, y: y - TITLE, width: MIN_WIDTH, height: TITLE + ROW * slots.length };
      return [id, { ...box, name: side, colour: "", inputs, outputs, values: [] }] as const;
    }),
  ]);
  const groups = groupsOf(graph);
  const all: readonly Box[] = [...shapes.values(), ...groups];
  const least = (ends: readonly number[]) => (ends.length === 0 ? 0 : Math.min(...ends)) - MARGIN;
  const left = least(all.map(({ x }) => x));
  const top = least(all.map(({ y }) => y));
  const right = -least(all.map(({ x, width }) => -x - width));
  const bottom = -least(all.map(({ y, height }) => -y - height));
  return drawing(
    [left, top, right - left, bottom - top],
    paint("back"),
    ...groups.map(({ title, colour, x, y, width, height }) => {
      const stroke = colour || paint("edge");
      return (
        element("rect", {
          x,
          y,
          width,
          height,
          rx: 10,
          fill: stroke,
          "fill-opacity": 0.15,
          stroke,
        }) + line(title, width, { x: x + 12, y: y + 20, fill: paint("text") }, 13)
      );
    }),
    ...links(graph, shapes, paint),
    ...[...shapes.values()].map((shape) => drawn(shape, paint)),
  );
}

function shapeOf(node: DocNode, doc: Doc, catalog: Catalog): Shape {
  const inside = subgraphOf(doc, node.type);
  const type = catalog.get(node.type);
  const values: { placed: Placed; y: number }[] = [];
  const sockets = node.inputs.filter(({ widget }) => widget === null);
  const first = node.y + ROW / 2 + 5;
  let y = first + ROW * Math.max(sockets.length, node.outputs.length);
  if (!node.collapsed)
    for (const placed of shownPlaced(node, inside, catalog)) {
      values.push({ placed, y });
      y += placed.widget.lines ? LINE * LINES + PAD : ROW;
    }
  const rowOf = (widget: string | null, name: string) =>
    widget === null
      ? first + ROW * sockets.findIndex((one) => one.name === name)
      : (values.find(({ placed }) => placed.widget.name === widget)?.y ?? first);
  const title = node.y - TITLE / 2;
  return {
    x: node.x,
    y: node.y - TITLE,
    width: Math.max(MIN_WIDTH, node.width),
    height: node.collapsed ? TITLE : y - first + ROW / 2 + TITLE + PAD,
    name: node.title || textOf(inside?.name) || type?.title || node.type,
    colour: node.colour,
    inputs: node.inputs.map(({ label, name, type: kind, widget }) => ({
      label: widget === null && !node.collapsed ? label : "",
      type: kind,
      y: node.collapsed ? title : rowOf(widget, name),
    })),
    outputs: node.outputs.map(({ label, type: kind }, row) => ({
      label: node.collapsed ? "" : label,
      type: kind,
      y: node.collapsed ? title : first + ROW * row,
    })),
    values,
  };
}

function links(graph: Doc, shapes: ReadonlyMap<string, Shape>, paint: Paint): readonly string[] {
  const through = throughOf(graph);
  const points = new Map(reroutesOf(graph).map((one) => [one.id, one]));
  return linksOf(graph).flatMap(({ id, from, fromSlot, to, toSlot, type }) => {
    const [source, target] = [shapes.get(from), shapes.get(to)];
    const [output, input] = [source?.outputs[fromSlot], target?.inputs[toSlot]];
    if (!source || !target || !output || !input) return [];
    const places = [
      { x: source.x + source.width, y: output.y },
      ...(through.get(id) ?? []).flatMap((one) => points.get(one) ?? []),
      { x: target.x, y: input.y },
    ];
    const curves = places.slice(1).map(({ x, y }, at) => {
      const before = places[at] ?? { x, y };
      const bend = Math.max(30, Math.abs(x - before.x) / 2);
      return `C${before.x + bend} ${before.y} ${x - bend} ${y} ${x} ${y}`;
    });
    const stroke = colourOf(type, paint);
    const d = `M${places[0]?.x} ${places[0]?.y}${curves.join("")}`;
    return [element("path", { d, fill: "none", stroke, "stroke-width": 2 })];
  });
}

function drawn({ x, y, width, height, name, colour, ...parts }: Shape, paint: Paint): string {
  const box = { x, y, width, rx: 9 };
  const [text, dim] = [{ fill: paint("text") }, { fill: paint("dim") }];
  const circle = (type: string, cx: number, cy: number) =>
    element("circle", { cx, cy, r: 5, fill: colourOf(type, paint) });
  return [
    element("rect", { ...box, height, fill: paint("panel"), stroke: paint("edge") }),
    element("rect", { ...box, height: TITLE, fill: colour || paint("raised") }),
    line(name, width - 2 * PAD, { x: x + PAD, y: y + 20, "font-weight": 600, ...text }),
    ...parts.values.map(({ placed, y: row }) => valueOf(placed, x, row, width, paint)),
    ...parts.inputs.map(
      ({ label, type, y: at }) =>
        circle(type, x, at) + line(label, width / 2, { x: x + PAD, y: at + 4, ...text }),
    ),
    ...parts.outputs.map(
      ({ label, type, y: at }) =>
        circle(type, x + width, at) +
        line(label, width / 2, { x: x + width - PAD, y: at + 4, "text-anchor": "end", ...dim }),
    ),
  ].join("");
}

function valueOf({ widget, value }: Placed, x: number, y: number, width: number, paint: Paint) {
  const field = { fill: paint("field"), stroke: paint("edge"), rx: 5 };
  const [text, dim] = [{ fill: paint("text") }, { fill: paint("dim") }];
  const inner = width - 2 * PAD;
  if (widget.lines)
    return [
      element("rect", { ...field, x: x + PAD, y: y - 8, width: inner, height: LINE * LINES + 4 }),
      ...linesOf(String(value), inner - PAD, LINES, 11).map((one, row) =>
        line(one, inner, { x: x + PAD + 6, y: y + 6 + LINE * row, ...text }, 11),
      ),
    ].join("");
  const place = { x: x + LABEL, y: y - 8, width: width - LABEL - PAD, height: 17 };
  return [
    line(widget.name.replaceAll("_", " "), LABEL - PAD, { x: x + PAD, y: y + 5, ...dim }, 11),
    element("rect", { ...field, ...place }),
    line(String(value), place.width - 8, { x: x + LABEL + 6, y: y + 5, ...text }, 11),
  ].join("");
}

function colourOf(type: string, paint: Paint): string {
  return paint("socket", `socket-${socketColour(type)}`);
}
