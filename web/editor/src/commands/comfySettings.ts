/**
 * Translates the user's settings of ComfyUI's front end (`comfy.settings.json`) to this editor's
 * settings. Pure.
 */
import {
  fieldsOf,
  isObject,
  type Json,
  type JsonObject,
  listOf,
  numberFrom,
  textOf,
  textsOf,
} from "../json";
import type { Colours } from "../state/look";
import { pickedOf } from "../ui/colours";

/** This editor's actions by ComfyUI's commands. */
export const COMMANDS: Readonly<Record<string, string>> = {
  "Comfy.QueuePrompt": "run",
  "Comfy.QueuePromptFront": "run-front",
  "Comfy.QueueSelectedOutputNodes": "run-to",
  "Comfy.Interrupt": "stop",
  "Comfy.Undo": "undo",
  "Comfy.Redo": "redo",
  "Comfy.OpenWorkflow": "open",
  "Comfy.SaveWorkflow": "save",
  "Comfy.SaveWorkflowAs": "save-as",
  "Comfy.ExportWorkflow": "download",
  "Comfy.NewBlankWorkflow": "new",
  "Comfy.BrowseTemplates": "templates",
  "Comfy.Canvas.FitView": "fit",
  "Comfy.Canvas.ResetView": "zoom-1",
  "Comfy.Canvas.ZoomIn": "zoom-in",
  "Comfy.Canvas.ZoomOut": "zoom-out",
  "Comfy.Canvas.DeleteSelectedItems": "delete",
  "Comfy.Canvas.ToggleLinkVisibility": "hide-all",
  "Comfy.Canvas.ToggleSelectedNodes.Mute": "mute",
  "Comfy.Canvas.ToggleSelectedNodes.Bypass": "bypass",
  "Comfy.Canvas.ToggleSelectedNodes.Pin": "pin",
  "Comfy.Canvas.ToggleSelected.Pin": "pin",
  "Comfy.Canvas.ToggleSelectedNodes.Collapse": "collapse",
  "Comfy.Graph.GroupSelectedNodes": "group",
  "Comfy.Graph.ConvertToSubgraph": "make-subgraph",
  "Comfy.Graph.UnpackSubgraph": "unpack",
  "Workspace.CloseWorkflow": "close",
  "Workspace.SearchBox.Toggle": "add",
  "Workspace.ToggleSidebarTab.queue": "jobs",
  "Workspace.ToggleSidebarTab.node-library": "nodes",
  "Workspace.ToggleSidebarTab.model-library": "models",
  "Workspace.ToggleSidebarTab.workflows": "files",
};

/** This editor's colours by the names in ComfyUI's palettes. */
const COLOURS: Readonly<Record<string, string>> = {
  "bg-color": "back",
  "comfy-menu-bg": "panel",
  "comfy-menu-secondary-bg": "raised",
  "comfy-input-bg": "field",
  "border-color": "edge",
  "fg-color": "text",
  "descrip-text": "dim",
  "error-text": "bad",
};

export interface KeyChange {
  readonly action: string;
  readonly key: string;
  /** Whether the action gains or loses the key. */
  readonly on: boolean;
}

export interface Taken {
  readonly keys: readonly KeyChange[];
  readonly favourites: readonly string[];
  readonly theme: "dark" | "light" | null;
  readonly colours: Colours;
  /** The text size; null if not set. */
  readonly text: number | null;
  /** Commands with keys that this editor does not have. */
  readonly unknown: readonly string[];
}

export function readComfy(settings: JsonObject): Taken {
  const unset = bindings(settings["Comfy.Keybinding.UnsetBindings"], false);
  const bound = bindings(settings["Comfy.Keybinding.NewBindings"], true);
  const all = [...unset, ...bound];
  const name = textOf(settings["Comfy.ColorPalette"]);
  const palette = fieldsOf(
    fieldsOf(settings["Comfy.CustomColorPalettes"])[name.replace(/^custom_/, "")],
  );
  const isLight = palette.light_theme === true || name === "light" || name === "arc";
  const size = numberFrom(settings["Comfy.TextareaWidget.FontSize"]);
  return {
    keys: all.flatMap(({ command, key, on }) => {
      const action = COMMANDS[command];
      return action === undefined ? [] : [{ action, key, on }];
    }),
    favourites: textsOf(settings["Comfy.NodeLibrary.Bookmarks.V2"]).flatMap(
      (path) => (path.endsWith("/") ? [] : path.split("/").slice(-1)), // folders end with /
    ),
    theme: name === "" ? null : isLight ? "light" : "dark",
    colours: coloursOf(palette, isLight ? "light" : "dark"),
    text: size > 0 ? size : null,
    unknown: bound.flatMap(({ command }) => (command in COMMANDS ? [] : [command])),
  };
}

function bindings(raw: Json | undefined, on: boolean) {
  return listOf(raw)
    .filter(isObject)
    .flatMap(({ commandId, combo }) => {
      const key = keyOf(fieldsOf(combo));
      return key === null ? [] : [{ command: textOf(commandId), key, on }];
    });
}

/** Returns a key combination as actions write it. */
function keyOf({ key, ctrl, meta, alt, shift }: JsonObject): string | null {
  const pressed = textOf(key);
  if (pressed === "") return null;
  const [lower, upper] = [pressed.toLowerCase(), pressed.toUpperCase()];
  const letter = pressed.length === 1 && lower !== upper;
  return [
    ctrl === true || meta === true ? "Mod" : "",
    alt === true ? "Alt" : "",
    shift === true && (letter || pressed.length > 1) ? "Shift" : "",
    letter ? (shift === true ? upper : lower) : pressed,
  ]
    .filter((part) => part !== "")
    .join("+");
}

function coloursOf(palette: JsonObject, scheme: "dark" | "light"): Colours {
  const base = fieldsOf(fieldsOf(palette.colors).comfy_base);
  const known = Object.entries(COLOURS).flatMap(([theirs, ours]) => {
    const colour = pickedOf(textOf(base[theirs]));
    return colour === null ? [] : [[`${scheme}-${ours}`, colour] as const];
  });
  return Object.fromEntries(known);
}
