/** Finds the current field, sets and copies its value, and transfers it to another field. */
import type { Widget } from "../catalog/catalog";
import { setWidget } from "../catalog/dynamic";
import { parsedNumber } from "../catalog/numbers";
import type { Placed } from "../catalog/placed";
import { shownPlaced } from "../catalog/promoted";
import { setValue } from "../document/commands";
import { nodesOf } from "../document/model";
import { subgraphOf } from "../document/scope";
import type { Json } from "../json";
import { type FieldName, useCanvas } from "../state/canvas";
import { activeSession, docOf, graphOf, useDocuments } from "../state/documents";
import { notify, useLive } from "../state/live";

/** Returns the field that contains an element. */
export function fieldAt(element: Element | null): FieldName | null {
  const row = element?.closest<HTMLElement>("[data-widget]");
  const node = row?.closest<HTMLElement>("[data-node]")?.dataset.node;
  const widget = row?.dataset.widget;
  return node === undefined || widget === undefined ? null : { node, widget };
}

/**
 * Returns the current field: that of the open menu, else the focused one, else the one under the
 * pointer.
 */
export function currentField(): FieldName | null {
  return (
    useCanvas.getState().menu?.field ??
    fieldAt(document.activeElement) ??
    fieldAt(document.querySelector("[data-widget]:hover"))
  );
}

function placedAt(name: FieldName): Placed | undefined {
  const session = activeSession();
  const node = session && nodesOf(graphOf(session)).find(({ id }) => id === name.node);
  if (!session || !node) return undefined;
  const inside = subgraphOf(docOf(session), node.type);
  const all = shownPlaced(node, inside, useLive.getState().catalog);
  return all.find(({ widget }) => widget.name === name.widget);
}

/** Sets a widget of the active document. `place`: the key of the value, if not the widget's own. */
export function setPlaced(
  node: string,
  placed: Placed,
  next: Json,
  {
    gesture = "",
    place = placed.key,
  }: { readonly gesture?: string; readonly place?: Placed["key"] } = {},
): void {
  const session = activeSession();
  if (session === null) return;
  useDocuments
    .getState()
    .change(
      session.id,
      `set ${placed.widget.name}`,
      (graph) =>
        place === placed.key
          ? setWidget(graph, useLive.getState().catalog, node, placed, next)
          : setValue(graph, node, place, next),
      gesture,
    );
}

export function copyValue(): void {
  const name = currentField();
  const placed = name === null ? undefined : placedAt(name);
  if (placed === undefined) return notify("point at a field or focus it to copy its value");
  navigator.clipboard
    .writeText(String(placed.value))
    .catch(() => notify("the browser does not let this page write to the clipboard"));
}

/** Converts a value to another widget; null if its kind differs or the choice is missing. */
export function fitted(value: Json, from: Widget, to: Widget): Json {
  if (from.kind !== to.kind) return null;
  if (to.kind === "number") return parsedNumber(String(value), to);
  return to.kind === "choice" ? (to.choices.find((one) => one === value) ?? null) : value;
}

/** Returns whether a field accepts the value of another one. */
export function canTransfer(from: FieldName, to: FieldName): boolean {
  const [source, target] = [placedAt(from), placedAt(to)];
  return (
    source !== undefined &&
    target !== undefined &&
    (from.node !== to.node || from.widget !== to.widget) &&
    fitted(source.value, source.widget, target.widget) !== null
  );
}

/** Sets a field to the value of another one. */
export function transferValue(from: FieldName, to: FieldName): void {
  const [source, target] = [placedAt(from), placedAt(to)];
  const next = source && target ? fitted(source.value, source.widget, target.widget) : null;
  if (target !== undefined && next !== null && next !== target.value)
    setPlaced(to.node, target, next);
}
