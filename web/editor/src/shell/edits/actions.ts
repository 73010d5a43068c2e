/** Lists the actions on links and on places of the graph. */
import type { Action } from "../actions";
import * as linking from "./linking";

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
];
