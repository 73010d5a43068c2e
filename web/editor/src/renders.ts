/** Reports rendered parts to tests: calls `window.katzRendered`, if set, with the part's name. */
declare global {
  interface Window {
    katzRendered?: (part: string) => void;
  }
}

export function noteRender(part: string): void {
  globalThis.window?.katzRendered?.(part);
}
