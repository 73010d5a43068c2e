/** Completes model names in a prompt: ↑, ↓, Enter or Tab, Esc. */
import { type KeyboardEvent, type ReactNode, type RefObject, useId, useRef, useState } from "react";
import { write } from "../commands/promptText";
import { candidates, completed, unfinishedAt } from "../prompts/completion";
import { namesOf } from "../server/models";
import { notify } from "../state/live";

interface Offered {
  readonly names: readonly string[];
  readonly at: number;
}

export function useCompletion(area: RefObject<HTMLTextAreaElement | null>) {
  const [offered, setOffered] = useState<Offered | null>(null);
  const list = useId();
  /** The text after a completion, which triggers no other one. */
  const made = useRef("");
  const now = () => {
    const field = area.current;
    return field === null || document.activeElement !== field || field.value === made.current
      ? null
      : unfinishedAt(field.value, field.selectionStart);
  };
  /**
   * Requests the names and shows them after the text has reached the document; rendering the field
   * earlier would restore its old text.
   */
  const look = async () => {
    const begun = now();
    const all = await (begun === null ? [] : namesOf(begun.kind));
    const still = now();
    const names = still?.kind === begun?.kind ? candidates(still?.part ?? "", all) : [];
    setOffered(still === null || names.length === 0 ? null : { names, at: 0 });
  };
  const choose = (name: string) => {
    const unfinished = now();
    if (area.current === null || unfinished === null) return;
    const whole = completed(area.current.value, unfinished, name);
    made.current = whole.text;
    write(area.current, whole);
  };
  /** Returns whether the list handled the key. */
  const onKey = (event: KeyboardEvent): boolean => {
    if (offered === null) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const chosen = offered.names[offered.at];
    if (step !== undefined) {
      const { length } = offered.names;
      setOffered({ ...offered, at: (offered.at + step + length) % length });
    } else if ((event.key === "Enter" || event.key === "Tab") && chosen !== undefined)
      choose(chosen);
    else if (event.key === "Escape") setOffered(null);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  };
  const shown: ReactNode = offered && (
    <div id={list} className="completion nowheel" role="listbox" aria-label="names">
      {offered.names.map((name, place) => (
        <div
          key={name}
          id={`${list}${place}`}
          role="option"
          tabIndex={-1}
          aria-selected={place === offered.at}
          onMouseDown={(event) => {
            event.preventDefault(); // the field keeps the focus
            choose(name);
          }}
        >
          {name}
        </div>
      ))}
    </div>
  );
  const described = {
    "aria-autocomplete": "list",
    "aria-controls": offered === null ? undefined : list,
    "aria-activedescendant": offered === null ? undefined : `${list}${offered.at}`,
  } as const;
  return {
    look: () => void look().catch(notify),
    onKey,
    close: () => setOffered(null),
    shown,
    described,
  };
}
