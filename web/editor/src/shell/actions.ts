/** Lists every action by name: keys, the palette and the sheet of shortcuts come from here. */

import { useCanvas } from "../canvas/state";
import { copied } from "../document/clipboard";
import { emptyDocument, removeNodes, setMode } from "../document/commands";
import { BYPASSED, MUTED, nodesOf } from "../document/model";
import { printJson } from "../json";
import { activeSession, docOf, useDocuments } from "./documents";
import { usePage } from "./page";
import { openFiles, run, stop } from "./running";

export interface Action {
  readonly id: string;
  readonly title: string;
  /** As `event.key`, with Mod for Ctrl or ⌘. */
  readonly keys: readonly string[];
  readonly act: () => void;
  /** Whether it is done from text fields, too. */
  readonly anywhere?: boolean;
}

function toggleMode(mode: number, label: string): void {
  const session = activeSession();
  const chosen = useCanvas.getState().selected;
  if (session === null || chosen.size === 0) return;
  const all = nodesOf(docOf(session)).filter((node) => chosen.has(node.id));
  const next = all.every((node) => node.mode === mode) ? 0 : mode;
  useDocuments.getState().change(session.id, label, (doc) => setMode(doc, chosen, next));
}

function download(): void {
  const session = activeSession();
  if (session === null) return;
  const doc = docOf(session);
  const address = URL.createObjectURL(new Blob([printJson(doc, 2)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `${session.name}.json`;
  link.click();
  URL.revokeObjectURL(address);
  useDocuments.getState().update(session.id, { saved: doc });
}

function chooseFiles(): void {
  const input = document.createElement("input");
  input.type = "file";
  input.multiple = true;
  input.accept = ".json,.png,.webp";
  input.onchange = () => void openFiles(input.files ?? []);
  input.click();
}

async function copy(cut: boolean): Promise<void> {
  const session = activeSession();
  const chosen = useCanvas.getState().selected;
  if (session === null || chosen.size === 0) return;
  await navigator.clipboard.writeText(copied(docOf(session), chosen));
  if (cut) useDocuments.getState().change(session.id, "cut", (doc) => removeNodes(doc, chosen));
}

const onActive = (act: (id: string) => void) => () => {
  const session = activeSession();
  if (session !== null) act(session.id);
};
const page = usePage.setState;
const aside = (which: "jobs" | "plan") =>
  page(({ side }) => ({ side: side === which ? null : which }));

export const ACTIONS: readonly Action[] = [
  { id: "run", title: "Run", keys: ["Mod+Enter"], act: () => void run(), anywhere: true },
  {
    id: "run-front",
    title: "Run at the front of the queue",
    keys: ["Mod+Shift+Enter"],
    act: () => void run(true),
    anywhere: true,
  },
  { id: "stop", title: "Stop", keys: ["Mod+Alt+Enter"], act: () => void stop(), anywhere: true },
  {
    id: "undo",
    title: "Undo",
    keys: ["Mod+z"],
    act: onActive((id) => useDocuments.getState().undo(id)),
  },
  {
    id: "redo",
    title: "Redo",
    keys: ["Mod+Shift+Z", "Mod+y"],
    act: onActive((id) => useDocuments.getState().redo(id)),
  },
  { id: "add", title: "Add a node", keys: ["Shift+A"], act: () => useCanvas.getState().ask() },
  { id: "copy", title: "Copy", keys: ["Mod+c"], act: () => void copy(false) },
  { id: "cut", title: "Cut", keys: ["Mod+x"], act: () => void copy(true) },
  { id: "mute", title: "Mute", keys: ["Mod+m"], act: () => toggleMode(MUTED, "mute") },
  { id: "bypass", title: "Bypass", keys: ["Mod+b"], act: () => toggleMode(BYPASSED, "bypass") },
  { id: "fit", title: "Show all", keys: ["."], act: () => useCanvas.getState().fit() },
  { id: "open", title: "Open files", keys: ["Mod+o"], act: chooseFiles, anywhere: true },
  { id: "save", title: "Download the workflow", keys: ["Mod+s"], act: download, anywhere: true },
  {
    id: "new",
    title: "New workflow",
    keys: ["Alt+n"],
    act: () => useDocuments.getState().open("workflow", emptyDocument()),
  },
  {
    id: "close",
    title: "Close the tab",
    keys: ["Alt+w"],
    act: onActive((id) => useDocuments.getState().close(id)),
  },
  { id: "templates", title: "Templates", keys: ["t"], act: () => page({ dialog: "templates" }) },
  { id: "jobs", title: "Queue and history", keys: ["q"], act: () => aside("jobs") },
  { id: "plan", title: "Plan: what runs where, and why", keys: ["e"], act: () => aside("plan") },
  {
    id: "palette",
    title: "All actions",
    keys: ["Mod+k"],
    act: () => page({ dialog: "palette" }),
    anywhere: true,
  },
  { id: "keys", title: "Shortcuts", keys: ["?"], act: () => page({ dialog: "keys" }) },
];

/** Dispatches a key press to at most one action. */
export function onKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing || usePage.getState().dialog !== null) return;
  const writing =
    event.target instanceof HTMLElement &&
    event.target.closest("input, textarea, select, [contenteditable]") !== null;
  const pressed = combination(event);
  const action = ACTIONS.find(({ keys }) => keys.includes(pressed));
  if (action === undefined || (writing && action.anywhere !== true)) return;
  event.preventDefault();
  action.act();
}

function combination(event: KeyboardEvent): string {
  const parts = [];
  if (event.ctrlKey || event.metaKey) parts.push("Mod");
  if (event.altKey) parts.push("Alt");
  const letter = event.key.length === 1 && event.key.toLowerCase() !== event.key.toUpperCase();
  if (event.shiftKey && (letter || event.key.length > 1)) parts.push("Shift");
  parts.push(event.key);
  return parts.join("+");
}
