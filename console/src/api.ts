/** Asking the node: every request of the console is made here, and every refusal has one shape. */

const ANSWER_MS_MAX = 35_000;

/** A refusal as the API spells it: what was wrong, and what to do next. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    message: string,
    readonly next: string,
    readonly facts: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

/** A wide integer comes as text, a small one as a number. */
export type Wide = string | number;

export interface Listed<Row> {
  items: Row[];
  after?: string | null;
}

function refusalOf(status: number, text: string): Refused {
  try {
    const body = JSON.parse(text);
    const message = body.message ?? body.error ?? `the node answered ${status}`;
    return new Refused(status, body.error ?? "", String(message), body.next ?? "", body.facts ?? {});
  } catch {
    return new Refused(status, "", `the node answered ${status}`, "see the log of the node");
  }
}

async function send(path: string, options: RequestInit): Promise<string> {
  let answer: Response;
  try {
    const signal = AbortSignal.timeout(ANSWER_MS_MAX);
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", signal, ...options });
  } catch {
    const next = "is it running? This page asks again by itself.";
    throw new Refused(0, "Unreachable", "the node does not answer", next);
  }
  const text = await answer.text();
  if (!answer.ok) throw refusalOf(answer.status, text);
  return text;
}

/** Read a page as JSON. */
export async function look<Answer>(path: string): Promise<Answer> {
  return JSON.parse(await send(path, {})) as Answer;
}

/** Read a page as it is. */
export function lookText(path: string): Promise<string> {
  return send(path, {});
}

/** Order something; the key lets a repeated order be carried out once. */
export async function order<Answer>(
  method: "POST" | "PUT" | "PATCH" | "DELETE",
  path: string,
  body?: unknown,
): Promise<Answer> {
  const headers: Record<string, string> = { "Idempotency-Key": `console-${crypto.randomUUID()}` };
  const options: RequestInit = { method, headers };
  if (method !== "DELETE") {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body ?? {});
  }
  return JSON.parse(await send(path, options)) as Answer;
}

/** Put values into a path, each as one segment of it. */
export function at(parts: TemplateStringsArray, ...values: (string | number)[]): string {
  return parts.reduce((path, part, nth) => path + encodeURIComponent(String(values[nth - 1])) + part);
}

/** Spell a query of what is said; what is empty is left out. */
export function query(values: Record<string, string | number | null | undefined>): string {
  const said = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(said.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}
