/** Defines an action: a command with a title and keys. */
export interface Action {
  readonly id: string;
  readonly title: string;
  /** Keys as in `event.key`, with Mod for Ctrl or ⌘. */
  readonly keys: readonly string[];
  readonly act: () => void;
  /** Whether the key also works in text fields. */
  readonly anywhere?: boolean;
  /** The key left to the browser, whose own event triggers the action. */
  readonly byBrowser?: string;
}
