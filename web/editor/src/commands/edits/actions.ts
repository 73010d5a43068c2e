/** Lists the actions on links, subgraphs, node positions and bookmarks. */
import { NUMBERS } from "../../document/bookmarks";
import { type Dialog, usePage } from "../../state/page";
import type { Action } from "../action";
import * as alignment from "./alignment";
import { goTo } from "./bookmarks";
import * as hiddenLinks from "./hiddenLinks";
import * as links from "./links";
import { onNodes } from "./selection";
import * as subgraphs from "./subgraphs";

/** Opens a dialog for the selected nodes, if there are any. */
const onSelection = (dialog: Dialog) => () => onNodes(() => usePage.setState({ dialog }));

export const LINKING: readonly Action[] = [
  {
    id: "dissolve",
    title: "Dissolve: delete, but keep the links",
    keys: ["Mod+Delete", "Mod+Backspace"],
    act: links.dissolve,
  },
  {
    id: "cut-links",
    title: "Cut all links of the selected nodes",
    keys: [],
    act: links.cutLinks,
  },
  {
    id: "link-selected",
    title: "Link the selected nodes",
    keys: ["Shift+F"],
    act: links.linkSelected,
  },
  { id: "swap", title: "Swap two inputs", keys: ["Alt+s"], act: links.swapInputs },
  {
    id: "replace",
    title: "Change the node type",
    keys: ["Shift+S"],
    act: onSelection("replace"),
  },
  {
    id: "hide-links",
    title: "Hide the selected links, or show them",
    keys: ["Alt+l"],
    act: hiddenLinks.toggleLinks,
  },
  {
    id: "name-link",
    title: "Name and hide the selected link",
    keys: [],
    act: hiddenLinks.nameLink,
  },
  {
    id: "hide-types",
    title: "Hide links of a type, or show them",
    keys: [],
    act: () => usePage.setState({ dialog: "link-types" }),
  },
  {
    id: "hide-all",
    title: "Hide all links, or show them",
    keys: ["Alt+Shift+L"],
    act: hiddenLinks.toggleAll,
  },
];

export const SUBGRAPHS: readonly Action[] = [
  {
    id: "make-subgraph",
    title: "Make a subgraph of the selected nodes",
    keys: ["Mod+Shift+E"],
    act: subgraphs.make,
  },
  {
    id: "unpack",
    title: "Unpack the subgraph",
    keys: ["Alt+Shift+E"],
    act: subgraphs.unpack,
  },
  { id: "rename-subgraph", title: "Rename the subgraph", keys: [], act: subgraphs.askForName },
  {
    id: "promote",
    title: "Show the field on the subgraph's node, or hide it",
    keys: ["Alt+o"],
    act: subgraphs.promote,
    anywhere: true,
  },
];

const EDGES = [
  ["left", "Align left edges", ["Mod+Shift+ArrowLeft"]],
  ["right", "Align right edges", ["Mod+Shift+ArrowRight"]],
  ["top", "Align top edges", ["Mod+Shift+ArrowUp"]],
  ["bottom", "Align bottom edges", ["Mod+Shift+ArrowDown"]],
  ["centre", "Align centres in a column", []],
  ["middle", "Align centres in a row", []],
] as const;

export const PLACING: readonly Action[] = [
  ...EDGES.map(([edge, title, keys]) => {
    return { id: `align-${edge}`, title, keys, act: () => alignment.align(edge) };
  }),
  {
    id: "distribute-x",
    title: "Distribute from left to right",
    keys: ["Shift+H"],
    act: () => alignment.distribute("x"),
  },
  {
    id: "distribute-y",
    title: "Distribute from top to bottom",
    keys: ["Shift+V"],
    act: () => alignment.distribute("y"),
  },
  { id: "straighten", title: "Straighten links", keys: ["Shift+L"], act: alignment.straighten },
];

export const BOOKMARKS: readonly Action[] = [
  {
    id: "bookmark",
    title: "Bookmark this place, or remove a bookmark",
    keys: ["b"],
    act: () => usePage.setState({ dialog: "bookmarks" }),
  },
  ...NUMBERS.map((number) => {
    const key = String(number);
    return {
      id: `bookmark-${key}`,
      title: `Go to bookmark ${key}`,
      keys: [key],
      act: () => goTo(number),
    };
  }),
];
