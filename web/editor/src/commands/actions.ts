/** Lists all actions, from which keys, menus, the palette and the shortcuts dialog are built. */

import { emptyDocument } from "../document/commands";
import { BYPASSED, MUTED } from "../document/model";
import { useCanvas } from "../state/canvas";
import { activeSession, useDocuments } from "../state/documents";
import { followedBy } from "../state/live";
import { type Dialog, type Side, usePage } from "../state/page";
import { plansOf } from "../state/planning";
import { askForName } from "../state/presence";
import { THEMES, useSettings } from "../state/settings";
import type { Action } from "./action";
import { toggleAutoQueue } from "./autoQueue";
import { BOOKMARKS, LINKING, PLACING, SUBGRAPHS } from "./edits/actions";
import { chooseField } from "./edits/form";
import * as nodes from "./edits/nodes";
import { peek } from "./edits/outputPreview";
import { unfold } from "./edits/stepNodes";
import { saveGraph, saveTimeline, saveTrace } from "./export";
import { copyValue } from "./fields";
import { chooseFiles, chooseSettings, download } from "./files";
import { enterNode, follow, showHelp, walk } from "./navigation";
import { toggleComment } from "./promptText";
import { run, runTo, stop } from "./run";
import { save } from "./save";
import { shareRun } from "./sharedLinks";
import { openSweepDialog } from "./sweep";

const STEP = 8;

const onActive = (act: (id: string) => void) => () => {
  const session = activeSession();
  if (session !== null) act(session.id);
};
const page = usePage.setState;
const dialog = (name: Dialog) => () => page({ dialog: name });
const aside = (which: Side) => () => page(({ side }) => ({ side: side === which ? null : which }));
const canvas = useCanvas.getState;

/** Opens the step of the selected sampler, or of the only sampler if nothing is selected. */
function openStep(): void {
  const session = activeSession();
  if (session === null) return;
  const plans = plansOf(session.planned, followedBy(session).shown);
  const chosen = [...canvas().selected].map((id) => [...session.path, id].join(":"));
  const plan =
    plans.find(({ sampler }) => chosen.includes(sampler)) ??
    (chosen.length === 0 && plans.length === 1 ? plans[0] : undefined);
  if (plan !== undefined) page({ step: { session: session.id, node: plan.sampler } });
}

const RUNNING: readonly Action[] = [
  { id: "run", title: "Run", keys: ["Mod+Enter"], act: () => void run(), anywhere: true },
  {
    id: "run-front",
    title: "Run at the front of the queue",
    keys: ["Mod+Shift+Enter"],
    act: () => void run({ front: true }),
    anywhere: true,
  },
  { id: "run-to", title: "Run the selected outputs only", keys: ["Shift+R"], act: runTo },
  {
    id: "rerun",
    title: "Run on change",
    keys: ["Alt+r"],
    act: toggleAutoQueue,
  },
  {
    id: "peek",
    title: "Preview an output of the node",
    keys: ["Alt+p"],
    act: peek,
  },
  {
    id: "sweep",
    title: "Sweep: run with several values of fields, side by side",
    keys: ["Alt+g"],
    act: openSweepDialog,
    anywhere: true,
  },
  { id: "share", title: "Copy a link to the run's page", keys: [], act: shareRun },
  { id: "stop", title: "Stop", keys: ["Mod+Alt+Enter"], act: () => void stop(), anywhere: true },
];

const EDITING: readonly Action[] = [
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
  { id: "steps", title: "Undo history", keys: ["u"], act: aside("steps") },
  { id: "add", title: "Add a node", keys: ["Shift+A"], act: () => canvas().ask() },
  { id: "copy", title: "Copy", keys: ["Mod+c"], act: () => void nodes.copy(false) },
  { id: "cut", title: "Cut", keys: ["Mod+x"], act: () => void nodes.copy(true) },
  {
    id: "paste",
    title: "Paste",
    keys: ["Mod+v"],
    act: () => void nodes.paste(),
    byBrowser: "Mod+v",
  },
  {
    id: "copy-value",
    title: "Copy the value of the field",
    keys: ["Mod+Shift+C"],
    act: copyValue,
    anywhere: true,
  },
  {
    id: "comment",
    title: "Comment or uncomment prompt lines",
    keys: ["Mod+/"],
    act: toggleComment,
    anywhere: true,
  },
  { id: "duplicate", title: "Duplicate", keys: ["Mod+d"], act: nodes.duplicate },
  {
    id: "delete",
    title: "Delete",
    keys: ["Delete", "Backspace"],
    act: nodes.remove,
  },
  { id: "rename", title: "Rename", keys: ["F2"], act: nodes.rename },
  { id: "mute", title: "Mute", keys: ["Mod+m"], act: () => nodes.toggleMode(MUTED, "mute") },
  {
    id: "bypass",
    title: "Bypass",
    keys: ["Mod+b"],
    act: () => nodes.toggleMode(BYPASSED, "bypass"),
  },
  {
    id: "collapse",
    title: "Collapse",
    keys: ["Alt+c"],
    act: () => nodes.toggleFlag("collapsed", "collapse"),
  },
  { id: "pin", title: "Pin", keys: ["p"], act: () => nodes.toggleFlag("pinned", "pin") },
  {
    id: "unfold",
    title: "Expand the sampler into step nodes",
    keys: ["Alt+Enter"],
    act: () => void unfold(),
  },
  { id: "colour", title: "Colour", keys: ["Shift+C"], act: dialog("colour") },
  { id: "group", title: "Group", keys: ["Mod+g"], act: nodes.group },
  { id: "arrange", title: "Arrange", keys: ["l"], act: nodes.arrange },
  { id: "all", title: "Select all", keys: ["Mod+a"], act: nodes.selectAll },
  {
    id: "upstream",
    title: "Select upstream nodes",
    keys: ["["],
    act: () => nodes.selectAlong("upstream"),
  },
  {
    id: "downstream",
    title: "Select downstream nodes",
    keys: ["]"],
    act: () => nodes.selectAlong("downstream"),
  },
  { id: "left", title: "Move left", keys: ["Mod+ArrowLeft"], act: () => nodes.nudge(-STEP, 0) },
  { id: "right", title: "Move right", keys: ["Mod+ArrowRight"], act: () => nodes.nudge(STEP, 0) },
  { id: "up", title: "Move up", keys: ["Mod+ArrowUp"], act: () => nodes.nudge(0, -STEP) },
  { id: "down", title: "Move down", keys: ["Mod+ArrowDown"], act: () => nodes.nudge(0, STEP) },
  ...(["left", "right", "up", "down"] as const).flatMap((way) => {
    const key = `Arrow${way.charAt(0).toUpperCase()}${way.slice(1)}`;
    const title = `the nearest node, ${way}`;
    return [
      { id: `walk-${way}`, title: `Select ${title}`, keys: [key], act: () => walk(way, false) },
      {
        id: `add-${way}`,
        title: `Also select ${title}`,
        keys: [`Shift+${key}`],
        act: () => walk(way, true),
      },
    ];
  }),
  { id: "back", title: "Go upstream", keys: ["Alt+ArrowLeft"], act: () => follow("back") },
  { id: "forth", title: "Go downstream", keys: ["Alt+ArrowRight"], act: () => follow("forth") },
  { id: "enter", title: "Edit the node's fields", keys: ["Enter"], act: enterNode },
  { id: "connect", title: "Connect the selected node", keys: ["c"], act: dialog("connect") },
  { id: "leave", title: "Leave the subgraph", keys: ["Escape"], act: nodes.leave },
];

const LOOKING: readonly Action[] = [
  { id: "fit", title: "Fit view", keys: ["."], act: () => canvas().fit() },
  {
    id: "fit-selected",
    title: "Show the selection",
    keys: [">"],
    act: () => canvas().fit(canvas().selected),
  },
  { id: "zoom-1", title: "Zoom to 100 %", keys: ["0"], act: () => canvas().zoom(1) },
  { id: "zoom-in", title: "Zoom in", keys: ["Alt+="], act: () => canvas().zoom("in") },
  { id: "zoom-out", title: "Zoom out", keys: ["Alt+-"], act: () => canvas().zoom("out") },
  { id: "find", title: "Find in the graph", keys: ["Mod+f"], act: dialog("find") },
  { id: "templates", title: "Templates", keys: ["t"], act: dialog("templates") },
  { id: "jobs", title: "Queue and history", keys: ["q"], act: aside("jobs") },
  { id: "nodes", title: "All node types", keys: ["n"], act: aside("nodes") },
  {
    id: "devices",
    title: "Devices: memory, load and current work",
    keys: ["d"],
    act: aside("devices"),
  },
  {
    id: "form",
    title: "Form: only the chosen fields and results",
    keys: ["f"],
    act: aside("form"),
  },
  {
    id: "form-field",
    title: "Add the field to the form, or remove it",
    keys: ["Mod+Shift+F"],
    act: chooseField,
    anywhere: true,
  },
  { id: "models", title: "Models", keys: ["m"], act: aside("models") },
  {
    id: "packs",
    title: "Packs: node types, and nodes left out",
    keys: ["Shift+N"],
    act: aside("packs"),
  },
  {
    id: "help",
    title: "Help for the selected node or field",
    keys: ["F1"],
    act: showHelp,
    anywhere: true,
  },
  { id: "gallery", title: "Pictures", keys: ["g", "a"], act: aside("gallery") },
  {
    id: "starred",
    title: "Starred pictures",
    keys: [],
    act: () => page({ side: "gallery", starred: true }),
  },
  {
    id: "compare",
    title: "Compare two pictures",
    keys: ["Shift+G"],
    act: () => page({ side: "gallery", picking: [] }),
  },
  {
    id: "overlay",
    title: "Plan over the graph, updated while editing",
    keys: ["e"],
    act: () => page(({ overlay }) => ({ overlay: !overlay, step: null })),
  },
  {
    id: "heat",
    title: "Colour nodes by run time and mark the critical path",
    keys: ["h"],
    act: () => page(({ heat }) => ({ heat: !heat })),
  },
  {
    id: "plan",
    title: "Plan and timeline: what runs where, and why",
    keys: ["Shift+E"],
    act: aside("plan"),
  },
  {
    id: "step",
    title: "Show the selected sampler's step plan",
    keys: ["Shift+Enter"],
    act: openStep,
  },
  {
    id: "palette",
    title: "All actions",
    keys: ["Mod+k"],
    act: dialog("palette"),
    anywhere: true,
  },
  {
    id: "appearance",
    title: "Appearance: colours and text size in nodes",
    keys: ["Shift+T"],
    act: dialog("appearance"),
  },
  {
    id: "take-over",
    title: "Import settings and shortcuts of ComfyUI's front end (comfy.settings.json)",
    keys: [],
    act: () => chooseSettings(ACTIONS),
  },
  ...THEMES.map((theme) => ({
    id: `theme-${theme}`,
    title: `Theme: ${theme}`,
    keys: [],
    act: () => useSettings.getState().setTheme(theme),
  })),
  { id: "keys", title: "Shortcuts", keys: ["?"], act: dialog("keys") },
];

const DOCUMENTS: readonly Action[] = [
  { id: "open", title: "Open files", keys: ["Mod+o"], act: chooseFiles, anywhere: true },
  { id: "save", title: "Save", keys: ["Mod+s"], act: () => void save(), anywhere: true },
  {
    id: "save-as",
    title: "Save under another name",
    keys: ["Mod+Shift+S"],
    act: dialog("save-as"),
    anywhere: true,
  },
  { id: "download", title: "Download the workflow", keys: [], act: download },
  ...(["svg", "png"] as const).flatMap((kind) => [
    {
      id: `graph-${kind}`,
      title: `Save a picture of the graph, ${kind.toUpperCase()}`,
      keys: [],
      act: () => saveGraph(kind),
    },
    {
      id: `timeline-${kind}`,
      title: `Save a picture of the timeline, ${kind.toUpperCase()}`,
      keys: [],
      act: () => saveTimeline(kind),
    },
  ]),
  {
    id: "trace",
    title: "Save a trace of the run, for Perfetto or Chrome",
    keys: [],
    act: saveTrace,
  },
  {
    id: "name",
    title: "Your name, shown to others with the same file open",
    keys: [],
    act: askForName,
  },
  {
    id: "versions",
    title: "Earlier versions of this file",
    keys: ["Alt+v"],
    act: dialog("versions"),
  },
  { id: "files", title: "Saved workflows", keys: ["w"], act: aside("files") },
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
  {
    id: "reopen",
    title: "Open the closed tab again",
    keys: ["Alt+Shift+W"],
    act: () => useDocuments.getState().reopen(),
  },
  {
    id: "tab-left",
    title: "Move the tab to the left",
    keys: ["Alt+Shift+ArrowLeft"],
    act: onActive((id) => useDocuments.getState().reorder(id, -1)),
  },
  {
    id: "tab-right",
    title: "Move the tab to the right",
    keys: ["Alt+Shift+ArrowRight"],
    act: onActive((id) => useDocuments.getState().reorder(id, 1)),
  },
];

/** The actions by topic, as in the shortcuts dialog. */
export const TOPICS: Readonly<Record<string, readonly Action[]>> = {
  Running: RUNNING,
  Editing: EDITING,
  Links: LINKING,
  Subgraphs: SUBGRAPHS,
  Places: PLACING,
  Looking: LOOKING,
  Bookmarks: BOOKMARKS,
  Documents: DOCUMENTS,
};

export const ACTIONS: readonly Action[] = Object.values(TOPICS).flat();
