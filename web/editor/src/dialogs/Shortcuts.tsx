/** Lists all shortcuts and lets the user change them. */
import { useState } from "react";
import type { Action } from "../commands/action";
import { ACTIONS, TOPICS } from "../commands/actions";
import { combination, withKeys, actionsWithKeys, keyText, useKeys } from "../commands/keys";
import { useSettings } from "../state/settings";
import { Modal } from "../ui/Modal";

/** The shortcut that the next key press replaces; "" if the action has none. */
interface Asking {
  readonly action: Action;
  readonly key: string;
}

/** Keys of other actions that the user may take over after a confirmation. */
interface Taking {
  readonly action: Action;
  readonly keys: readonly string[];
}

export function Shortcuts({ onClose }: { readonly onClose: () => void }) {
  const own = useSettings(({ keys }) => keys);
  const { setKeys } = useSettings.getState();
  const keysOf = useKeys();
  const [asking, setAsking] = useState<Asking | null>(null);
  const [taking, setTaking] = useState<Taking | null>(null);
  const [words, setWords] = useState("");
  const give = (action: Action, keys: readonly string[]) => {
    setKeys(withKeys(ACTIONS, keys, action.id, own));
    setTaking(null);
    setWords(`${action.title}: ${keys.map(keyText).join(", ") || "no key"}`);
  };
  const want = (action: Action, keys: readonly string[]) => {
    setAsking(null);
    setTaking(null);
    const others = actionsWithKeys(ACTIONS, keys, action.id, own);
    if (others.length === 0) return give(action, keys);
    const taken = others.map(({ title }) => `“${title}”`).join(" and ");
    setWords(`${keys.map(keyText).join(", ")} is the key of ${taken} already`);
    setTaking({ action, keys });
  };
  const onKeyDown = (event: React.KeyboardEvent) => {
    if (asking === null || event.key === "Tab") return setAsking(null);
    const key = combination(event.nativeEvent);
    event.preventDefault();
    if (key === null) return;
    if (key === "Escape") {
      setAsking(null);
      return setWords("");
    }
    const before = keysOf(asking.action).filter((one) => one !== key);
    const at = before.indexOf(asking.key);
    want(asking.action, at < 0 ? [...before, key] : before.with(at, key));
  };
  return (
    <Modal label="Shortcuts" onClose={onClose}>
      <div className="sheet-head">
        <p role="status">{words || "Click a shortcut, then press its new key."}</p>
        {taking !== null && (
          <>
            <button type="button" autoFocus onClick={() => give(taking.action, taking.keys)}>
              Use it for “{taking.action.title}”
            </button>
            <button
              type="button"
              onClick={() => {
                setTaking(null);
                setWords("");
              }}
            >
              Cancel
            </button>
          </>
        )}
        <button
          type="button"
          onClick={() => {
            setKeys({});
            setTaking(null);
            setWords("All shortcuts were reset.");
          }}
        >
          Reset all
        </button>
      </div>
      <div className="sheet">
        {Object.entries(TOPICS).map(([topic, actions]) => (
          <table key={topic}>
            <caption>{topic}</caption>
            <tbody>
              {actions.map((action) => (
                <tr key={action.id}>
                  <th scope="row">{action.title}</th>
                  <td>
                    {(keysOf(action).length > 0 ? keysOf(action) : [""]).map((key) => {
                      const asked = asking?.action === action && asking.key === key;
                      return (
                        <button
                          type="button"
                          key={key}
                          className="key"
                          aria-label={`${key === "" ? "none" : keyText(key)}, change the key of ${action.title}`}
                          aria-pressed={asked}
                          onClick={() => {
                            setTaking(null);
                            setAsking({ action, key });
                            setWords(`${action.title}: press a key, or Esc`);
                          }}
                          onKeyDown={asked ? onKeyDown : undefined}
                          onBlur={() => setAsking(null)}
                        >
                          <kbd>{asked ? "…" : key === "" ? "none" : keyText(key)}</kbd>
                        </button>
                      );
                    })}
                    {own[action.id] !== undefined && (
                      <button
                        type="button"
                        className="plain"
                        aria-label={`reset the key of ${action.title}`}
                        onClick={() => want(action, action.keys)}
                      >
                        reset
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        ))}
      </div>
    </Modal>
  );
}
