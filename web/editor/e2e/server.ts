/** Servers for single tests. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Browser, expect, type Page } from "@playwright/test";

const KATZ = process.env.KATZ ?? "katz";

/** A server with its own folder, which a test may kill. */
export class Server {
  private process: ChildProcess | null = null;

  private readonly folder = mkdtempSync(join(tmpdir(), "served-"));

  constructor(private readonly options: readonly string[] = []) {}

  readonly port = 9_000 + (process.pid % 900);

  async start(): Promise<void> {
    const folders = ["data", "input", "output"].flatMap((one) => [
      `--${one}`,
      join(this.folder, one),
    ]);
    this.process = spawn(
      KATZ,
      ["serve", "--port", String(this.port), ...folders, ...this.options],
      {
        stdio: "ignore",
        detached: true,
        env: { ...process.env, KATZ_TOKEN: "token-of-the-tests" },
      },
    );
    await expect(async () => {
      expect((await fetch(`http://127.0.0.1:${this.port}/readyz`)).ok).toBe(true);
    }).toPass({ timeout: 120_000 });
  }

  signal(name: NodeJS.Signals): void {
    const { pid, exitCode, signalCode } = this.process ?? {};
    const lives = exitCode === null && signalCode === null;
    if (pid !== undefined && lives) process.kill(-pid, name); // includes the runner
  }

  end(): void {
    this.signal("SIGKILL");
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

export async function visit(browser: Browser, server: Server): Promise<Page> {
  const page = await browser.newPage({ baseURL: `http://127.0.0.1:${server.port}` });
  await page.goto("/");
  await expect(page.getByText("connected", { exact: true })).toBeVisible();
  return page;
}
