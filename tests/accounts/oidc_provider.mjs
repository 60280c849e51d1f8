// An identity provider on a free port of loopback: the npm package oidc-provider, which logs in whom the test names.
//
//   node oidc_provider.mjs PATH-OF-THE-PACKAGE '{"redirectUri": ..., "clientId": ..., "secret": ..., "algorithm": ...}'
//
// Prints its port. Each line of standard input is a command in JSON, which is answered by a line.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { generateKeyPairSync } from "node:crypto";
import { pathToFileURL } from "node:url";

console.log = console.info = console.warn = console.error; // standard output is for the test
const say = (text) => process.stdout.write(`${text}\n`);
const { Provider } = await import(pathToFileURL(`${process.argv[2]}/lib/index.js`));
const settings = JSON.parse(process.argv[3]);
const person = { sub: "subject-1", claims: {} };
let handle;

function keys() {
  const rsa = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" });
  const ec = generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ format: "jwk" });
  return [rsa, ec].map((key) => ({ ...key, use: "sig" }));
}

function start(issuer) {
  const client = {
    client_id: settings.clientId,
    redirect_uris: [settings.redirectUri],
    response_types: ["code"],
    grant_types: ["authorization_code"],
    token_endpoint_auth_method: settings.auth,
    id_token_signed_response_alg: settings.algorithm,
    ...(settings.auth === "none" ? {} : { client_secret: settings.secret }),
  };
  const provider = new Provider(issuer, {
    clients: [client],
    jwks: { keys: keys() },
    cookies: { keys: ["only for tests"] },
    claims: { openid: ["sub"], profile: ["preferred_username", "groups"], email: ["email"] },
    conformIdTokenClaims: settings.claimsIn === "userinfo",
    features: { devInteractions: { enabled: false } },
    enabledJWA: { idTokenSigningAlgValues: ["RS256", "PS256", "ES256"] },
    pkce: { required: () => true },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...person.claims }) }),
    async loadExistingGrant(ctx) {
      const grant = new ctx.oidc.provider.Grant({
        clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId,
      });
      grant.addOIDCScope("openid profile email");
      await grant.save();
      return grant;
    },
  });
  const answer = provider.callback();
  handle = async (request, response) => {
    if (!request.url.startsWith("/interaction/")) return answer(request, response);
    const result = person.error ? { error: person.error } : { login: { accountId: person.sub } };
    return provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
  };
}

const server = createServer((request, response) => handle(request, response));
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  start(issuer);
  say(server.address().port);
  createInterface({ input: process.stdin }).on("line", (line) => {
    const { rotate, ...changed } = JSON.parse(line);
    Object.assign(person, changed);
    if (rotate) start(issuer);
    say("done");
  }).on("close", () => process.exit(0));
});
