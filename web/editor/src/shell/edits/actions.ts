/** Lists the actions on links and on places of the graph. */
import type { Action } from "../actions";
import { type Dialog, usePage } from "../page";
import * as linking from "./linking";
import { onNodes } from "./selection";

/** Opens a dialog about the selected nodes, where there are some. */
const onSelection = (dialog: Dialog) => () => onNodes(() => usePage.setState({ dialog }));

export const LINKING: readonly Action[] = [
  {
    id: "dissolve",
    title: "Dissolve: delete, but keep the links",
    keys: ["Mod+Delete", "Mod+Backspace"],
    act: linking.dissolve,
  },
  {
    id: "cut-links",
    title: "Cut all links of the selected nodes",
    keys: [],
    act: linking.cutLinks,
  },
  {
    id: "link-selected",
    title: "Link the selected nodes",
    keys: ["Shift+F"],
    act: linking.linkSelected,
  },
  { id: "swap", title: "Swap two inputs", keys: ["Alt+s"], act: linking.swapInputs },
  {
    id: "replace",
    title: "Replace by another type",
    keys: ["Shift+S"],
    act: onSelection("replace"),
  },
];
