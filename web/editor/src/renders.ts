/** Tells a test what was rendered, where one listens: `window.katzRendered` gets the part's name. */
declare global {
  interface Window {
    katzRendered?: (part: string) => void;
  }
}

export function noteRender(part: string): void {
  globalThis.window?.katzRendered?.(part);
}
