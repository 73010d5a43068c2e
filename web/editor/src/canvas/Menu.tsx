/** Shows the context menu at the pointer, with the actions for the clicked element. */
import { useEffect, useRef } from "react";
import { ACTIONS } from "../commands/actions";
import { keyText, useKeys } from "../commands/keys";
import { useCanvas } from "../state/canvas";

const ON_FIELD = ["copy-value", "promote", "sweep"];
const ON_NODES = [
  "help",
  "rename",
  "copy",
  "cut",
  "duplicate",
  "mute",
  "bypass",
  "collapse",
  "pin",
  "colour",
  "group",
  "make-subgraph",
  "unpack",
  "unfold",
  "upstream",
  "downstream",
  "arrange",
  "run-to",
  "peek",
  "replace",
  "swap",
  "link-selected",
  "dissolve",
  "delete",
];
const ON_LINK = ["hide-links", "name-link", "delete"];
const ON_GROUP = ["rename", "colour", "delete"];
const ON_CANVAS = ["add", "paste", "all", "arrange", "hide-all", "hide-types", "fit", "find"];

/** Pixels between the menu's corner and the end of its rounding. */
const INSIDE = 3;

/** Returns the actions for the clicked element. */
function actionsOn(what: string): readonly string[] {
  if (what === "") return ON_CANVAS;
  if (what.startsWith("link:")) return ON_LINK;
  return what.startsWith("group:") ? ON_GROUP : ON_NODES;
}

export function Menu() {
  const menu = useCanvas((canvas) => canvas.menu);
  return menu === null ? null : <Open key={`${menu.x} ${menu.y}`} menu={menu} />;
}

function Open({
  menu: { x, y, what, field },
}: {
  readonly menu: NonNullable<ReturnType<typeof useCanvas.getState>["menu"]>;
}) {
  const keysOf = useKeys();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    element.showPopover();
    const { width, height } = element.getBoundingClientRect();
    // keeps the pointer inside: releasing the button outside would close the menu
    element.style.left = `${Math.max(0, Math.min(x - INSIDE, window.innerWidth - width - 8))}px`;
    element.style.top = `${Math.max(0, Math.min(y - INSIDE, window.innerHeight - height - 8))}px`;
    element.querySelector("button")?.focus();
  }, [x, y]);
  const names = actionsOn(what);
  const all = field === null ? names : [...ON_FIELD, ...names];
  const close = () => useCanvas.setState({ menu: null });
  return (
    <div
      ref={box}
      className="menu"
      role="menu"
      aria-label={what === "" ? "canvas" : "selection"}
      popover="auto"
      onToggle={(event) => event.newState === "closed" && close()}
      onKeyDown={(event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        const entries = [...event.currentTarget.querySelectorAll("button")];
        const at = entries.indexOf(document.activeElement as HTMLButtonElement);
        entries.at((at + step) % entries.length)?.focus();
      }}
    >
      {all.flatMap((name) => {
        const action = ACTIONS.find(({ id }) => id === name);
        return action === undefined
          ? []
          : [
              <button
                type="button"
                role="menuitem"
                key={name}
                onClick={() => {
                  action.act(); // first: may read the menu's field
                  close();
                }}
              >
                <span>{action.title}</span>
                <kbd>{keyText(keysOf(action)[0] ?? "")}</kbd>
              </button>,
            ];
      })}
    </div>
  );
}
