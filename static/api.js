// Swagger UI over our own document.
const place = document.getElementById("swagger");
SwaggerUIBundle({ url: place.dataset.document, domNode: place, deepLinking: true, tryItOutEnabled: false, validatorUrl: null });
